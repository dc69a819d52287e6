"""Collect the results of requests, and write them in pieces that every API has."""
