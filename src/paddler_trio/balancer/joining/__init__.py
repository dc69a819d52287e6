"""Decide how machines become agents: join tokens, agents' credentials, and who may dial in
without."""
