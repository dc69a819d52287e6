"""The link of an agent to its balancer."""
