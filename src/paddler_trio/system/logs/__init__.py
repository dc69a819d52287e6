"""Logs of a daemon: structured lines, the ring that operators read, the stream."""
