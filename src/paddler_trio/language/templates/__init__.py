"""Chat templates: what they can do, what they may cost, and what they make of a conversation."""
