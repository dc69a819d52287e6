"""The record of what came and how fast agents are, and the routes of questions about both."""
