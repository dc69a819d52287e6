"""What a balancer measures for `/metrics`: of requests, agents, deployments and rollouts."""
