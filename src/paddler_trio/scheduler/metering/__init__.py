"""Add up what requests did: in pieces of time, and for whom."""
