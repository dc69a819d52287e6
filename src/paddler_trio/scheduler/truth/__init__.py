"""Say what is true of a fleet, a deployment, an agent and a request, in words for people."""
