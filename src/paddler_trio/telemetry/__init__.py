"""What is measured of requests, and how it leaves: traces and the access log."""
