"""Decide whether a model fits the memory that there is, and if not, what would."""
