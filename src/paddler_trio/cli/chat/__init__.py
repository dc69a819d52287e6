"""``paddler-trio chat``: one question, or a conversation on a terminal."""
