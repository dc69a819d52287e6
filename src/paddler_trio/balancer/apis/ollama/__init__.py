"""Ollama's API, as its own clients speak it."""
