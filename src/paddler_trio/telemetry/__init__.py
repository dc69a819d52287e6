"""What is measured, and how it leaves: metrics, traces and the access log."""
