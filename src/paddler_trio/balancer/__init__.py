"""The balancer's shells: HTTP and WebSocket doors, agent sockets, the life of a request."""
