"""The child processes of an agent and how they are kept."""
