"""Routes of the inference and management services, and their guards."""
