"""A fleet in virtual time: the deciders of the balancer, with engines that only take their time."""
