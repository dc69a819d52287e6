"""Commands for keys, join tokens, credentials and certificates."""
