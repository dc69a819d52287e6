"""The work of ``agent --discover``: find a balancer, ask for its PIN, and join."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from paddler_trio.agent.link.balancer_trust import UnreachableError, token_for_pin
from paddler_trio.agent.link.join_request import join
from paddler_trio.cli.access.agent_membership import folder_of
from paddler_trio.cli.access.join_run import host_name
from paddler_trio.cli.terminal import printable, stderr
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import check_agent_name
from paddler_trio.net.joining.found_balancers import FoundBalancer, found_balancers
from paddler_trio.net.joining.pin_exchange import parsed_pin
from paddler_trio.net.tls.client_tls import ClientTls

MAX_LINE_CHARS = 80


def join_discovered(*, name: str | None, state_dir: Path | None, tls: ClientTls) -> None:
    """Join a balancer of the local network, unless this machine has joined one.

    ConfigurationError: none is there, the PIN is wrong, or what `join` says.
    """
    folder = folder_of(state_dir)
    if folder.joined() is not None:
        return
    agent = check_agent_name(name or host_name() or "")
    stderr().print("looking for balancers on the local network …")
    balancer = chosen(found_balancers())
    pin = parsed_pin(_asked(f"PIN of {balancer.name}, as `paddler-trio join-pin` shows it: "))
    folder.make()
    problems: list[str] = []
    for address in balancer.addresses:
        try:
            token = token_for_pin(
                pin, address, agent=agent, balancer=balancer.name, ca_file=folder.new_ca, tls=tls
            )
            break
        except UnreachableError as error:
            problems.append(str(error))
    else:
        raise ConfigurationError("; ".join(problems))
    result = join(token, folder, name=agent, host_name=None, tls=tls)
    stderr().print(printable(f"joined {result.joined.address} as {result.joined.name}"))


def chosen(found: Sequence[FoundBalancer]) -> FoundBalancer:
    """Return the balancer that is meant: the only one, or the one that a person chooses."""
    if not found:
        raise ConfigurationError(
            "no balancer announces itself on the local network: start one with `paddler-trio "
            "balancer --discoverable`. Where the network carries no multicast, join with a token "
            "(`paddler-trio join-token new`)"
        )
    lines = [f"{each.name} ({each.addresses[0]})" for each in found]
    if len(found) == 1:
        stderr().print(printable(f"found {lines[0]}"))
        return found[0]
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{len(found)} balancers announce themselves: {printable(', '.join(lines))}. Choose "
            "one at a terminal, or join with a token (`paddler-trio join`)"
        )
    for number, line in enumerate(lines, 1):
        stderr().print(printable(f"{number:3}  {line}"))
    answer = _asked(f"which one? 1 to {len(found)}: ")
    if not answer.isdecimal() or not 1 <= int(answer) <= len(found):
        raise ConfigurationError(f"{answer[:20]!r} is none of 1 to {len(found)}")
    return found[int(answer) - 1]


def _asked(question: str) -> str:
    """Return a line of standard input; a person is asked for it."""
    if sys.stdin.isatty():
        stderr().print(question, end="")
    line = sys.stdin.buffer.readline(MAX_LINE_CHARS).decode("ascii", "replace").strip()
    if not line:
        raise ConfigurationError(
            "no PIN on standard input: `paddler-trio join-pin` shows one at the balancer"
        )
    return line
