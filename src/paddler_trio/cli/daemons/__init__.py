"""The commands that are daemons, and their settings."""
