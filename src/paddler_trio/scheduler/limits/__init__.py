"""How much one API key may use: pure deciders."""
