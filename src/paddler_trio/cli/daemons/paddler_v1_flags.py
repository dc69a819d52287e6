"""Command lines of Paddler before 2.0, said in ours: a pure translation, with a word on each flag.

Paddler 2.0 took away the reverse proxy for running llama-servers, and the flags with it. A command
line is an old one if it has a flag that we lack; then all of it is read as it was meant then. Notes
are there to be read once, so that the new line is written down. What must not be said in our flags,
or cannot be, is refused, and nothing starts.

A command line of Paddler before 2.0, taken apart: its own flags, and everything else.

There were three generations of flags: Go up to 0.10 (a flag each for host, port and scheme), Rust
1.0 to 1.2 (``host:port``, durations in seconds), and the last state before 2.0, which was never
released.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

METADATA: Final = "aws:metadata:"
_UNITS_MS: Final = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "m": 60e3,
    "h": 3600e3,
}
_DURATION: Final = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h))+")
_PART: Final = re.compile(r"([\d.]+)([a-zµ]+)")


def _addresses(*stems: str) -> frozenset[str]:
    return frozenset(f"{stem}-{part}" for stem in stems for part in ("host", "port", "scheme"))


@attrs.frozen
class Flags:
    """The flags of one command, without dashes.

    Args:
      go, rust: those that we lack; of rust, the unreleased ones as well.
      both: those that we have too and that matter for the translation.
    """

    go: frozenset[str]
    rust: frozenset[str]
    both: frozenset[str]


AGENT: Final = Flags(
    go=_addresses("local-llamacpp", "external-llamacpp", "management", "status-server")
    | {"local-llamacpp-api-key", "agent-reporting-interval-miliseconds"},
    rust=frozenset({"local-llamacpp-addr", "external-llamacpp-addr", "llamacpp-api-key"}),
    both=frozenset({"management-addr", "upstream"}),
)
BALANCER: Final = Flags(
    go=_addresses("management", "reverseproxy", "statsd")
    | {"statsd-enable", "request-buffer-size", "request-buffer-timeout"},
    rust=frozenset({"management-dashboard-enable"}),
    both=frozenset(
        {
            "management-addr",
            "reverseproxy-addr",
            "statsd-addr",
            "statsd-prefix",
            "statsd-reporting-interval",
            "buffered-request-timeout",
        }
    ),
)
SWITCHES: Final = frozenset({"statsd-enable", "management-dashboard-enable"})
"""Flags without a value; Go also took ``=true`` and ``=false``."""


@attrs.frozen
class OldLine:
    """Values are by name without dashes, the last one where a flag is repeated.

    Args:
      old: of flags that we lack; ``true`` or ``false`` for switches.
      both: of flags that we have too, as ``Flags.both`` names them.
      rest: every other word, in its order.
      is_go: whether a flag of Go's generation is among them.
      incomplete: names of flags whose value is missing.
    """

    old: Mapping[str, str]
    both: Mapping[str, str]
    rest: tuple[str, ...]
    is_go: bool
    incomplete: tuple[str, ...]

    @classmethod
    def read(cls, words: Sequence[str], flags: Flags) -> OldLine:
        """Take a command's words apart; ``-name`` and ``--name=value`` are as good as others."""
        known = flags.go | flags.rust | flags.both
        values: dict[str, str] = {}
        rest: list[str] = []
        incomplete: list[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            name, has_value, value = word.lstrip("-").partition("=")
            if not word.startswith("-") or name not in known:
                rest.append(word)
                continue
            if not has_value and name in SWITCHES:
                value = "true"
            elif not has_value and left:
                value = left.pop(0)
            elif not has_value:
                incomplete.append(name)
            values[name] = value
        return cls(
            old={name: value for name, value in values.items() if name not in flags.both},
            both={name: value for name, value in values.items() if name in flags.both},
            rest=tuple(rest),
            is_go=any(name in flags.go for name in values),
            incomplete=tuple(incomplete),
        )


def milliseconds_of_go(duration: str) -> int | None:
    """``60s``, ``1m30s`` or ``500ms``, as Go writes durations; None if it is none."""
    if duration == "0":
        return 0
    if not _DURATION.fullmatch(duration):
        return None
    return round(sum(float(n) * _UNITS_MS[unit] for n, unit in _PART.findall(duration)))


def joined_address(host: str, port: str) -> str:
    """``host:port``, an IPv6 address in brackets; ``aws:metadata:ITEM`` is a host, too."""
    is_ipv6 = ":" in host and not host.startswith(METADATA)
    return f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"


GO_HOST: Final = "127.0.0.1"
GO_PORTS: Final = {
    "management": "8085",
    "reverseproxy": "8086",
    "local-llamacpp": "8088",
    "external-llamacpp": "8088",
    "statsd": "8125",
}
"""Where things were in Go's generation, unless a flag said otherwise."""
SECONDS: Final = ("buffered-request-timeout", "statsd-reporting-interval")
"""Once in seconds, with us in milliseconds."""
DOUBTFUL_MS: Final = 1000
"""Below this, what is said to a proxy in milliseconds may have been meant in seconds."""
STATSD_PREFIX: Final = "paddler"


@attrs.frozen
class Translation:
    """``arguments`` are ours, the command first; with a refusal they are not to be used."""

    arguments: tuple[str, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]


def translate(arguments: Sequence[str]) -> Translation | None:
    """Translate a command line of Paddler before 2.0; None if it is none.

    Args:
      arguments: without the program's name.
    """
    match [*arguments]:
        case ["agent", *words]:
            return _agent(OldLine.read(words, AGENT))
        case ["balancer", *words]:
            line = OldLine.read(words, BALANCER)
            return _balancer(line) if line.old else _balancer_in_doubt(line, arguments)
        case _:
            return None


@attrs.define
class _Written:
    """A translation so far."""

    line: OldLine
    flags: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    refusals: list[str] = attrs.field(factory=list)

    def say(self, before: str, flag: str, value: str) -> None:
        """One flag instead of others."""
        self.flags += [f"--{flag}", value]
        self.notes.append(f"{before} is --{flag} {value}")

    def drop(self, names: Sequence[str], why: str) -> None:
        """Flags that mean nothing any more; none of them may be given."""
        given = [f"--{name}" for name in names if name in self.line.old]
        if given:
            self.notes.append(f"{', '.join(given)}: {why}")

    def number(self, name: str, flag: str, factor: float = 1) -> None:
        """A whole number under another name, in another unit."""
        text = self.line.old.get(name, self.line.both.get(name))
        if text is None:
            return
        if not (text.isascii() and text.isdigit() and len(text) < 15):
            self.refusals.append(f"--{name} {text!r}: write a whole number")
            return
        self.say(f"--{name} {text}", flag, f"{int(text) * factor:.12g}")

    def address(self, stem: str, whole: str) -> tuple[str, str, str] | None:
        """Scheme, ``host:port`` and the words it was given in, of Go's three flags; None if it was
        given whole, or is of another generation."""
        parts = {part: self.line.old.get(f"{stem}-{part}") for part in ("host", "port", "scheme")}
        given = [f"--{stem}-{part} {value}" for part, value in parts.items() if value is not None]
        if whole in self.line.old or whole in self.line.both:
            if given:
                self.refusals.append(f"give --{whole}, or {' '.join(given)}, not both")
            return None
        if not self.line.is_go:
            return None
        host = parts["host"] or GO_HOST
        address = joined_address(host, parts["port"] or GO_PORTS[stem])
        before = " ".join(given) or f"no --{stem}-host and no --{stem}-port"
        return parts["scheme"] or "http", address, before

    def end(self, command: str) -> Translation:
        missing = tuple(f"--{name} needs a value" for name in self.line.incomplete)
        return Translation(
            (command, *self.flags, *self.line.rest),
            tuple(self.notes),
            (*self.refusals, *missing),
        )


def _agent(line: OldLine) -> Translation | None:
    if not line.old:
        return None
    written = _Written(line)
    for name in ("management-addr", "upstream"):
        if name in line.both:
            written.flags += [f"--{name}", line.both[name]]
    if (server := line.old.get("local-llamacpp-addr")) is not None:
        written.say(f"--local-llamacpp-addr {server}", "upstream", f"http://{server}")
    if (found := written.address("local-llamacpp", "local-llamacpp-addr")) is not None:
        scheme, address, before = found
        written.say(before, "upstream", f"{scheme}://{address}")
    if not line.is_go and "upstream" not in line.both and server is None:
        written.refusals.append(
            "where is the llama-server? Say it with --upstream http://HOST:PORT"
        )
    if (found := written.address("management", "management-addr")) is not None:
        scheme, address, before = found
        tls = "https://" if scheme == "https" else ""
        written.say(before, "management-addr", f"{tls}{address}")
    for name in ("llamacpp-api-key", "local-llamacpp-api-key"):
        if name in line.old:
            written.refusals.append(
                f"--{name} shows the key to every user of this machine: write it into a file that "
                "the agent may read, and give --upstream-key-file FILE"
            )
    written.number("agent-reporting-interval-miliseconds", "monitoring-interval", 0.001)
    _external(written)
    written.drop(
        ("status-server-host", "status-server-port", "status-server-scheme"),
        "not needed, the balancer knows how its agents are; --metrics-addr shows their metrics",
    )
    return written.end("agent")


def _external(written: _Written) -> None:
    """The balancer dialled this address; now it is shown only."""
    old, stem = written.line.old, "external-llamacpp"
    if (whole := old.get(f"{stem}-addr")) is not None:
        written.say(f"--{stem}-addr {whole}", "upstream-external-addr", whole)
    elif f"{stem}-host" in old or f"{stem}-port" in old:
        host, port = old.get(f"{stem}-host", GO_HOST), old.get(f"{stem}-port", GO_PORTS[stem])
        given = [
            f"--{name} {old[name]}" for name in (f"{stem}-host", f"{stem}-port") if name in old
        ]
        written.say(" ".join(given), "upstream-external-addr", joined_address(host, port))
    written.drop((f"{stem}-scheme",), "not needed, agents dial the balancer")


def _balancer(line: OldLine) -> Translation:
    written = _Written(line)
    for stem in ("management", "reverseproxy"):
        whole = f"{stem}-addr"
        if whole in line.both:
            written.flags += [f"--{whole}", line.both[whole]]
        if (found := written.address(stem, whole)) is not None:
            _, address, before = found
            written.say(before, whole, address)
        if (scheme := line.old.get(f"{stem}-scheme", "http")) != "http":
            written.refusals.append(
                f"--{stem}-scheme {scheme}: for TLS give --tls-cert and --tls-key"
            )
    written.drop(
        ("management-dashboard-enable",),
        "not needed, the panel is at /panel/ of the management address; --web-admin-panel-addr "
        "gives it a port of its own",
    )
    written.number("request-buffer-size", "max-buffered-requests")
    if (timeout := line.old.get("request-buffer-timeout")) is not None:
        milliseconds = milliseconds_of_go(timeout)
        if milliseconds is None:
            written.refusals.append(f"--request-buffer-timeout {timeout!r}: write one such as 60s")
        else:
            before = f"--request-buffer-timeout {timeout}"
            written.say(before, "buffered-request-timeout", str(milliseconds))
    for name in SECONDS:
        written.number(name, name, 1000)
    _statsd(written)
    return written.end("balancer")


def _statsd(written: _Written) -> None:
    """Both old generations reported idle slots, under ``paddler`` and a dot."""
    line = written.line
    address = line.both.get("statsd-addr")
    if line.old.get("statsd-enable", "false") != "false":
        if (found := written.address("statsd", "statsd-addr")) is not None:
            written.say(f"--statsd-enable {found[2]}", "statsd-addr", found[1])
            address = found[1]
    else:
        written.drop(
            ("statsd-enable", "statsd-host", "statsd-port", "statsd-scheme"),
            "nothing is sent without --statsd-enable, and so it is without --statsd-addr",
        )
    if "statsd-addr" in line.both:
        written.flags += ["--statsd-addr", line.both["statsd-addr"]]
    if address is not None:
        prefix = line.both.get("statsd-prefix", STATSD_PREFIX)
        written.flags += ["--statsd-prefix", prefix, "--statsd-v1-names"]
        written.notes.append(
            f"gauges keep their old names with --statsd-prefix {prefix} --statsd-v1-names; without "
            "these they are those of Paddler 4.1"
        )


def _balancer_in_doubt(line: OldLine, arguments: Sequence[str]) -> Translation | None:
    """A line that both generations could mean: it is ours, and a unit may be another one's."""
    notes = tuple(
        f"--{name} {line.both[name]} is {line.both[name]} milliseconds; Paddler 1.x counted "
        f"seconds, for which write {line.both[name]}000"
        for name in SECONDS
        if line.both.get(name, "").isdigit() and 0 < int(line.both[name]) < DOUBTFUL_MS
    )
    is_proxy = "reverseproxy-addr" in line.both
    return Translation(tuple(arguments), notes, ()) if is_proxy and notes else None
