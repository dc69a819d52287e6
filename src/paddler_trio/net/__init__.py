"""Transport: the HTTP server, the HTTP client, WebSockets and TLS."""
