"""Who serves what: which host loads which deployment, and when. Pure; see ``fleet_plan.plan``."""
