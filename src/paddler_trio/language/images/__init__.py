"""Images of a request: decoded within limits, and put in their places in a prompt."""
