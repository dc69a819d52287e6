"""What agents and balancers of this package say to each other beyond Paddler's protocol."""
