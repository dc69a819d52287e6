"""The balancer's decisions: which request holds which slot, waits, or is turned away."""
