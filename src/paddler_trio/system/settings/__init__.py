"""What the operator decides: one frozen value a daemon, of which its flags are made."""
