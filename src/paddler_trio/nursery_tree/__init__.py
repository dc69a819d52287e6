"""The heart: both trees, and what they own.

``balancer_tree`` and ``agent_tree`` show which task owns which, and in which order everything ends:
nested nurseries are the shutdown order, what is innermost is closed first. ``dispatcher``,
``request``, ``lease`` and ``agent_connection`` are the balancer's accounting: which request waits,
which slot it holds, and what happens to both when a client or an agent is gone.
"""
