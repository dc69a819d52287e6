"""What requests came and how fast agents are, and questions about both."""
