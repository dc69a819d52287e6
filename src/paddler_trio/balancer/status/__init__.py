"""The state of the fleet as operators are told it: agents that were lost, and what is wrong."""
