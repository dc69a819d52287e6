"""Where the parts of an agent are made and wired together."""
