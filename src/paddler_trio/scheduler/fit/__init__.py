"""Does a model fit the memory that there is, and if not, what would."""
