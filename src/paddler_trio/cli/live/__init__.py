"""Commands that show what a fleet does at the moment."""
