"""``paddler-trio rpc-server``: lend this machine's devices to agents on other machines.

The work is done by llama.cpp's own loop, which runs in a thread and knows no stop: at the first
SIGTERM or SIGINT the process ends at once, and engines that were using it notice. There is
nothing to save, and an engine that loses a server has to start anew in any case.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TextIO

import typer

from paddler_trio.cli.terminal import one_line_errors, require_llama
from paddler_trio.errors import ConfigurationError, EngineError
from paddler_trio.system.config import split_address
from paddler_trio.system.machine import granted_cores

DEFAULT_RPC_ADDR = "127.0.0.1:50052"
LOOK_S = 0.02


def rpc_server(
    addr: Annotated[
        str,
        typer.Option(help="IPv4 host:port to serve on; port 0 lets the system choose."),
    ] = DEFAULT_RPC_ADDR,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Threads to compute with where the CPU is lent.",
            show_default="all cores",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep large tensors here, this server's own folder: models that come again "
            "load faster."
        ),
    ] = None,
    insecure_rpc: Annotated[
        bool,
        typer.Option(
            "--insecure-rpc",
            help="Serve beyond the loopback, where anybody who reaches it may use it.",
        ),
    ] = False,
) -> None:
    """Lend this machine's GPUs, or its CPU, to an agent elsewhere, through llama.cpp's RPC."""
    with one_line_errors():
        host, port = checked_address(addr, insecure_rpc=insecure_rpc)
        require_llama()
        answers = _keep_answers_apart()
        _set_environment()
        # Only now: llama.cpp's thread library reads the environment when it is loaded.
        from paddler_trio.processes.engine.rpc.rpc_serving import (
            devices_to_lend,
            prepare_cache,
            serve_devices,
        )

        devices = devices_to_lend()
        if cache_dir is not None:
            prepare_cache(cache_dir)
        names = ", ".join(f"{device.name} ({device.description})" for device in devices)

        def serve() -> None:
            serve_devices(
                devices,
                host=host,
                port=port,
                threads=threads or max(1, int(granted_cores())),
                cache_dir=cache_dir,
            )

        _serve_until_signal(
            serve, lambda bound: print(f"RPC server on {bound} lends {names}", file=answers)
        )


def checked_address(addr: str, *, insecure_rpc: bool) -> tuple[str, int]:
    """The IPv4 address in digits and the port; a warning if strangers can reach it, and that is
    meant.

    Errors:
      ConfigurationError: no such address here, or in use; or strangers could reach it.
    """
    host, port = split_address(addr)
    try:
        found = socket.getaddrinfo(
            host, port, socket.AF_INET, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--addr {addr}: llama.cpp's RPC server needs an IPv4 address: {error}"
        ) from error
    host = str(found[0][4][0])
    if not ipaddress.ip_address(host).is_loopback:
        if not insecure_rpc:
            raise ConfigurationError(
                f"the RPC server on {addr} would be open to everybody who reaches it, and "
                "llama.cpp's RPC protocol knows no keys and trusts what it is sent: bind it to "
                "127.0.0.1 and reach it through a tunnel (`ssh -L`, WireGuard), or say "
                "--insecure-rpc if it is meant, in a network that only your agents can reach"
            )
        sys.stderr.write(
            f"paddler-trio: RPC IS OPEN on {addr}: whoever reaches it may read and change what "
            "agents compute here, and may take over this process\n"
        )
    _check_free(host, port)
    return host, port


def _check_free(host: str, port: int) -> None:
    """ConfigurationError with the reason if it cannot be bound: llama.cpp gives none."""
    from paddler_trio.net.server.listening import listen

    for trial in listen(f"{host}:{port}"):
        trial.close()


def _keep_answers_apart() -> TextIO:
    """Return what standard output was. Libraries that print there print to standard error from now
    on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return answers


def _set_environment() -> None:
    """Set what llama.cpp's threads and aborts go by, unless the operator's environment says it."""
    from paddler_trio.agent.children.thread_waiting import THREAD_WAITING

    if not os.environ.keys() & THREAD_WAITING.keys():
        os.environ.update(THREAD_WAITING)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # on an abort ggml would attach a debugger for seconds


def _serve_until_signal(serve: Callable[[], None], announce: Callable[[str], None]) -> None:
    """Run ``serve`` in a thread; end the process with status 0 at the first signal.

    Args:
      announce: called once with ``host:port``, when the process listens.

    Errors:
      EngineError: ``serve`` returned, which it should not.
    """
    import signal

    import trio

    from paddler_trio.processes.engine.rpc.rpc_sockets import listening_socket

    async def announce_when_listening() -> None:
        while (bound := listening_socket()) is None:  # noqa: ASYNC110  llama.cpp has no callback
            await trio.sleep(LOOK_S)
        announce("{}:{}".format(*bound))

    async def live() -> bool:
        """True if a signal came, False if ``serve`` returned."""
        was_asked = False
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async with trio.open_nursery() as nursery:

                async def wait_signal() -> None:
                    nonlocal was_asked
                    async for _ in received:
                        was_asked = True
                        break
                    nursery.cancel_scope.cancel(reason="a signal")

                nursery.start_soon(wait_signal, name="signals")
                nursery.start_soon(announce_when_listening, name="announcement")
                await trio.to_thread.run_sync(serve, abandon_on_cancel=True)
                nursery.cancel_scope.cancel(reason="llama.cpp's server has ended")
        return was_asked

    if trio.run(live):
        # Not through the interpreter: its exit handlers would tear llama.cpp down under the thread.
        os._exit(0)
    raise EngineError("the RPC server has ended by itself; llama.cpp's reason stands above")
