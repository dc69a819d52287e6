"""An agent: its link, requests, model and child processes, and servers whose slots it offers."""
