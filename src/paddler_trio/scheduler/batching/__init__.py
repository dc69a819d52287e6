"""The engine's decisions: which tokens of which sequences make up the next forward pass."""
