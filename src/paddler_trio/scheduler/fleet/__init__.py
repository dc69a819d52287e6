"""Which agent does what, so that the fleet becomes what is desired: decided, not done."""
