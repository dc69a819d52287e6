"""The sockets of agents, and the frames that cross them."""
