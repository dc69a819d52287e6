"""Metrics, traces and the access log: what is measured, and how it leaves."""
