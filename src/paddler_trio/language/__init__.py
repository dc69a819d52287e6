"""Text in, tokens and pieces out: templates, answers, grammars and images; no Trio, no agent."""
