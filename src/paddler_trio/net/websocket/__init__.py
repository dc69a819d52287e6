"""WebSocket connections with bounded messages and buffers."""
