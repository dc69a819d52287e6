"""The requests that an agent works on."""
