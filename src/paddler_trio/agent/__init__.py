"""The agent's shells: the link to its balancer, the model it serves, everything about language."""
