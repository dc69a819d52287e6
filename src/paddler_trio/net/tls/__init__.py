"""TLS: certificates, contexts, and how they are read again while connections go on."""
