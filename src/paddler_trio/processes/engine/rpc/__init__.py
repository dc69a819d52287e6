"""llama.cpp's RPC servers, whose devices an engine may use."""
