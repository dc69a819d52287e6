"""Grammars in llama.cpp's notation (GBNF) from schemas, patterns, choices and tool calls."""
