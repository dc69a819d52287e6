"""A process of its own that announces a balancer on the local network: mDNS and DNS-SD."""
