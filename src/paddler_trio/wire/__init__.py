"""Every message that crosses a socket or a pipe, as values, and the JSON they are written in."""
