"""Predict what a model needs of memory, corrected by what was measured."""
