"""The model of an agent: fetched, fitted, loaded, shown."""
