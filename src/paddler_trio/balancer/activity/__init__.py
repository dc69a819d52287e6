"""Know what the balancer is doing: each request and its past, figures of the last hour, and the
feed."""
