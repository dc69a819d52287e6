"""An agent: its link to a balancer, requests, model, child processes, and servers it stands before."""
