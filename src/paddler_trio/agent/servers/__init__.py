"""Servers such as llama-server, whose slots an agent offers."""
