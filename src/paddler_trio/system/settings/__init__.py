"""Settings of the operator: one frozen value a daemon, of which its flags are made."""
