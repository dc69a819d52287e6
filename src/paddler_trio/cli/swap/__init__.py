"""A model swap as it is previewed and followed on a terminal."""
