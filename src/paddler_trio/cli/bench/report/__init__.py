"""The report of a load test: pages, plots, JSON."""
