"""The command `paddler-trio template`."""
