"""One balancer takes over from another: sockets, state and locks pass, and nobody notices."""
