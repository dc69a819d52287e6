"""The balancer's decisions: who holds which slot, who waits, who is turned away."""
