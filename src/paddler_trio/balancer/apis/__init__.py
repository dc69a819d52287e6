"""Other people's APIs, each translated to and from one typed request."""
