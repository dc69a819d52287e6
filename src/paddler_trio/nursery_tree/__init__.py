"""The whole life of both daemons: who lives, who owns whom, in which order everything ends.

Read ``balancer_tree`` and ``agent_tree`` first; ``supervise`` and ``restart_budget`` are what
they lean on. Nested nurseries are the shutdown order: what is innermost is closed first.
"""
