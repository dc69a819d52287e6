"""Resumable, verified downloads of model files."""
