"""HTTP and WebSocket listeners: accept loop, connections, limits, router, CORS, authentication."""
