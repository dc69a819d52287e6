"""What a model is predicted to need of memory, corrected by what was measured."""
