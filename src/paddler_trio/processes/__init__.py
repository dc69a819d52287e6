"""Child processes and what they do: the engine, preparation, the model store, set-up."""
