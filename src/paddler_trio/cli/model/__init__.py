"""The command `paddler-trio model`."""
