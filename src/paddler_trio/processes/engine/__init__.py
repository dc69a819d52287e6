"""The engine: a child process that owns llama.cpp and speaks tokens over a pipe.

It is a process of its own because a decode loop that shares its process with a busy event loop
loses 20-50 % of its tokens to the interpreter lock, because llama.cpp aborts the process on some
states, and because ending a process gives back all its memory. It knows no trio, no network and
no language: token ids in, token ids and their bytes out.
"""
