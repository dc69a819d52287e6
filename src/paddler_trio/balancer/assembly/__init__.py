"""The one place where the parts of a daemon are made and wired together."""
