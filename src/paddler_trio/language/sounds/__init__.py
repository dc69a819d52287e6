"""Sounds as clients send them, to the samples that a model listens to."""
