"""Account for what became of each request of a client, for the access log and for traces."""
