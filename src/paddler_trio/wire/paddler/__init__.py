"""Paddler 4.1's messages: frozen, byte for byte."""
