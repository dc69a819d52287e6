"""Model hubs: which file of a repository a name means."""
