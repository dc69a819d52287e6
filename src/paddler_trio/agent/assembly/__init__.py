"""Make the parts of an agent and wire them together."""
