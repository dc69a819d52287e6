"""For every test: Hypothesis without deadlines, because a shared machine keeps none."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)
settings.load_profile("here")
