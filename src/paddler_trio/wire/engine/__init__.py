"""The pipe between an agent and its engine process."""
