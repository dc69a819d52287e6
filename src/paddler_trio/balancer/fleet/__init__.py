"""The fleet: what it is to serve, kept over restarts; and making it so."""
