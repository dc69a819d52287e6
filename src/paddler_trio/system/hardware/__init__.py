"""Readers of what a machine is made of and how it is doing; each says nothing where it cannot."""
