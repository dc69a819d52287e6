"""Questions about capacity, answered in a process of its own."""
