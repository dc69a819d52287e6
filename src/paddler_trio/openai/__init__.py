"""The OpenAI-compatible surface: requests and answers translated to and from native ones."""
