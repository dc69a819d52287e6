"""Limits that a process sets itself, below those that it was started with."""

from __future__ import annotations

import resource


def limit_myself(which: int, soft: int, hard: int = resource.RLIM_INFINITY) -> None:
    """Set a limit as :func:`resource.setrlimit` does, where a limit above the hard one in force
    (``ulimit``, or ``Limit…=`` of a unit) means that one: nothing but it would be refused."""
    _, most = resource.getrlimit(which)
    resource.setrlimit(which, (_lower(soft, most), _lower(hard, most)))


def _lower(limit: int, most: int) -> int:
    if resource.RLIM_INFINITY in (limit, most):  # which is less than every number
        return most if limit == resource.RLIM_INFINITY else limit
    return min(limit, most)
