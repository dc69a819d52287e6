"""A load balancer and serving platform for llama.cpp, built as one supervised nursery tree."""

__version__ = "0.1.0"
