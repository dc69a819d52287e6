"""Sampling and constraints of what is sampled."""
