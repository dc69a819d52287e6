"""llama.cpp's objects: models, contexts, batches, projectors."""
