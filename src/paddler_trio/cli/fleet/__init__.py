"""The commands `paddler-trio fleet` and `paddler-trio rollout`."""
