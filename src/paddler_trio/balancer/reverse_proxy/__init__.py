"""Requests that servers behind agents answer, byte for byte."""
