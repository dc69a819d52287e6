"""The cache of model files on this machine."""
