"""The balancer's shells: HTTP and WebSocket listeners, agent sockets, the life of a request."""
