"""Models that an operator pushed to the model store of a balancer."""
