"""The child processes that turn requests into tokens: killable, and limited in memory and time.

``__main__`` is a fork server: it reads a model's language once, then forks a worker whenever the
agent asks for one. ``worker`` does jobs for one agent connection, ``jobs`` says what a job is,
``job_limits`` what it may cost, ``preparation_messages`` what goes over the sockets. No Trio here.
"""
