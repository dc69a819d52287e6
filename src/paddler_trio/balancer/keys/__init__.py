"""API keys: their files, terms, limits, use and audit."""
