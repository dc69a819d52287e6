"""Measure requests, agents, deployments and rollouts for `/metrics`."""
