"""The identity that a credential gives an agent: its possible names and its fixed labels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import attrs


@attrs.frozen(eq=False)
class AgentIdentity:
    """The agent of one connection.

    Args:
      labels: of the token that it joined with.
      rotate: lets the secret of one digest replace that of another; False if it cannot.
    """

    name: str
    labels: Mapping[str, str]
    rotate: Callable[[bytes, bytes], Awaitable[bool]] = attrs.field(repr=False)

    def name_problem(self, name: str | None, deployment: str) -> str | None:
        """Why an instance of ``deployment`` may not register under this name; None if it may."""
        if name in (None, self.name, f"{self.name}.{deployment}"):
            return None
        return (
            f"this agent joined as {self.name!r} and registers as {(name or '')[:80]!r}: start it "
            "without --name, or let it join again under the other name"
        )

    def may_meet(self, where: Iterable[str]) -> bool:
        """Return whether this agent may meet the conditions of a deployment, whatever it says of
        itself: none of them contradicts its name or the labels of its token."""
        known = {**self.labels, "agent": self.name}
        terms = (term.partition("=") for term in where)
        return all(known.get(key, value) == value for key, _, value in terms)

    def labels_with(self, claimed: Mapping[str, str]) -> Mapping[str, str]:
        """The agent's own labels, and over them those of its token."""
        return {**claimed, **self.labels}
