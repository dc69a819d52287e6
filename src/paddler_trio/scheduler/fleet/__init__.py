"""Decide which host loads which deployment, and when; see ``fleet_plan.plan``."""
