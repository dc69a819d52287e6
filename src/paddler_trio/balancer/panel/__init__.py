"""The web admin panel as a site: its files, its sessions, and the APIs under one origin."""
