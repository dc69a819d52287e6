"""Decide how much one API key may use."""
