"""The work of ``paddler-trio join``, once the command line is understood."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from paddler_trio.agent.link.agent_folder import AgentFolder
from paddler_trio.agent.link.balancer_trust import UnreachableError, token_for_pin
from paddler_trio.agent.link.join_request import JoinResult, join
from paddler_trio.agent.link.join_request import join as request_joining
from paddler_trio.cli.access.agent_membership import folder_of
from paddler_trio.cli.terminal import print_json, printable, stderr, stdout
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import check_agent_name
from paddler_trio.net.joining.found_balancers import FoundBalancer, found_balancers
from paddler_trio.net.joining.join_token import JoinToken
from paddler_trio.net.joining.pin_exchange import parsed_pin
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.system.durable import MAX_SECRET_CHARS, read_secret


def join_here(
    *,
    name: str | None,
    slots: int | None,
    token_file: Path | None,
    state_dir: Path | None,
    is_replacing: bool,
    is_insecure: bool,
    as_json: bool,
    tls: ClientTls,
) -> None:
    """Join, print what came of it, and become the agent if ``slots`` says so.

    ConfigurationError; a usage error for a ``state_dir`` that is a file.
    """
    folder = folder_of(state_dir)
    token = JoinToken.parse(read_secret(token_file) if token_file is not None else _token())
    result = request_joining(
        token,
        folder,
        name=name,
        host_name=host_name(),
        is_replacing=is_replacing,
        is_insecure=is_insecure,
        tls=tls,
    )
    if as_json:
        print_json(
            {
                **attrs.asdict(result.joined),
                "labels": result.labels,
                "credential": str(folder.credential),
            }
        )
    else:
        _show(result, folder)
    command = _agent_command(folder, state_dir, slots, tls)
    if slots is None:
        stderr().print(f"start it with `{' '.join(command)}`")
        return
    sys.stdout.flush()
    program = [sys.executable, "-P", "-m", "paddler_trio", *command[1:]]
    os.execv(sys.executable, program)  # noqa: S606  # this very program


def host_name() -> str | None:
    """This machine's name as one of an agent; None if it has none that can be one."""
    text = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._")[:63]
    return text or None


def _token() -> str:
    """Read the token from standard input; a person is asked, and what is typed is not shown."""
    if sys.stdin.isatty():
        try:
            text = getpass.getpass("join token (not shown): ", stream=sys.stderr)
        except EOFError:
            text = ""
    else:
        text = sys.stdin.buffer.readline(MAX_SECRET_CHARS + 2).decode("ascii", "replace")
    if not text.strip():
        raise ConfigurationError(
            "no join token on standard input: `paddler-trio join <<< 'ptj1.…'`, or --token-file "
            "FILE"
        )
    return text.strip()


def _show(result: JoinResult, folder: AgentFolder) -> None:
    joined = result.joined
    labels = " ".join(f"{key}={value}" for key, value in sorted(result.labels.items()))
    stdout().print(
        printable(f"joined {joined.address} as {joined.name}" + (f" ({labels})" if labels else ""))
    )
    stderr().print(f"its credential is in {folder.credential}, for this user only")


def _agent_command(
    folder: AgentFolder, state_dir: Path | None, slots: int | None, tls: ClientTls
) -> list[str]:
    given = {
        "--state-dir": None if state_dir is None else folder.path,
        "--tls-client-cert": tls.cert_file,
        "--tls-client-key": tls.key_file,
    }
    more = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    return ["paddler-trio", "agent", "--slots", str(slots or 4), *more]


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
