"""Keep the past over restarts: figures in time, and what was used."""
