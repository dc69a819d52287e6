"""Tokens, credentials and their files, which both sides of a join share."""
