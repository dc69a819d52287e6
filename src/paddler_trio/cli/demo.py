"""``paddler-trio demo``: balancer, agent and the bundled model in one supervised tree."""

from __future__ import annotations
