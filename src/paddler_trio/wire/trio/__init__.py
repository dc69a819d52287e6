"""The protocol between agents and balancers of this package, beyond Paddler's."""
