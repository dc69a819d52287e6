"""Routes with which operators look after the machines of agents."""
