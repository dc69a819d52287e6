"""The HTTP server whose slots an agent offers: a client for it, and a monitor of its state."""
