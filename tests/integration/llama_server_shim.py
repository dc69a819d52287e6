#!/usr/bin/env python
"""Stands in for the ``llama-server`` binary in llama.cpp's own tests of it, with a fleet of ours.

Its tests are in the source archive of llama-cpp-python (``tools/server/tests``); nothing of them is
here. With the ``bin`` of this project's environment first in ``PATH``, in their folder::

    LLAMA_SERVER_BIN_PATH=.../tests/integration/llama_server_shim.py pytest unit/test_basic.py

Unless it is told another ``--model``, it serves the bundled one, so what the tests say of a model's
words, of the number of its tokens, or of a token of beginning that it does not have, cannot pass.
``benchmarks/llama_server_suite.py`` does all of this, with one fleet for all tests, which takes
minutes instead of an hour. What else differs:

* files of slots, context shift, routing of models, sleeping, metrics on this port, the web pages
  and tools of the server are not what a fleet has (501 or 404, by name);
* ``/slots`` is always there, a fleet's seed is not, and a fleet's keys are files;
* a page is refused by its origin unless the operator lists it; there, any may read;
* files of the server's disk are no images;
* ``prompt`` of an answer is the text that was sent, without what the model puts before it;
* the ``aliases`` of a model have the names of its file, and not its ``id`` again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import trio

sys.path.append(str(Path(__file__).parents[1]))  # as pytest finds the modules of tests

from fleet import BUNDLED_MODEL, Fleet

NEUTRAL = {
    "penalty_repeat": 1.0,
    "penalty_presence": 0.0,
    "penalty_frequency": 0.0,
    "penalty_last_n": 64,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "k_cache_dtype": "F16",
    "v_cache_dtype": "F16",
}
"""What llama-server samples and computes with where neither it nor a request is told."""
KEPT = "LLAMA_SERVER_SHIM_FLEET"
"""``_4`` behind it, the variable with the two addresses of a fleet of one agent of 4 slots."""
SWITCHES = ("--embedding", "--reranking")


def flags(arguments: list[str]) -> argparse.Namespace:
    """Those that have a counterpart; others are left out."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--ctx-size", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--alias", default="")
    parser.add_argument("--pooling", default="last")
    parser.add_argument("--chat-template-file", type=Path)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--mmproj", type=Path)
    for switch in SWITCHES:
        parser.add_argument(switch, action="store_true")
    return parser.parse_known_args(arguments)[0]


def deployment(asked: argparse.Namespace) -> dict[str, object]:
    """``default`` as these flags want it."""
    pooling = "Rank" if asked.reranking else asked.pooling.capitalize()
    parameters = {
        **NEUTRAL,
        "temperature": asked.temp,
        "context_size": asked.ctx_size,
        "n_batch": asked.batch_size,
        "enable_embeddings": asked.embedding or asked.reranking,
        "pooling_type": pooling,
    }
    spec: dict[str, object] = {
        "name": "default",
        "model": {"LocalToAgent": str(asked.model)},
        "parameters": parameters,
        "aliases": sorted(asked.alias.split(",")) if asked.alias else [],
    }
    if asked.mmproj is not None:
        spec["projection"] = {"LocalToAgent": str(asked.mmproj)}
    if asked.chat_template_file is not None:
        spec["template"] = asked.chat_template_file.read_text()
    return spec


async def answer_at(asked: argparse.Namespace, fleet: Fleet) -> None:
    """Pass connections on until SIGTERM: nobody is answered before the model is served."""
    host, _, port = fleet.inference.rpartition(":")

    async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            async for data in source:
                await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await sink.aclose()  # one side has left

    async def pass_on(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream(host, int(port))
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)

    async with trio.open_nursery() as nursery:
        for each in asked.host.split(","):
            nursery.start_soon(partial(trio.serve_tcp, pass_on, asked.port, host=each.strip()))
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()


@contextmanager
def started(slots: int) -> Iterator[Fleet]:
    """The fleet that was started before for all tests, or one of this server's own."""
    addresses = os.environ.get(f"{KEPT}_{slots}")
    if addresses is None:
        with Fleet.start(agents=1, slots=slots, model=None) as fleet:
            yield fleet
    else:
        inference, management = addresses.split()
        yield Fleet(None, inference, management, {}, [], [])  # who started it ends its daemons


def main() -> None:
    asked = flags(sys.argv[1:])
    with started(asked.parallel) as fleet:
        httpx.put(
            f"{fleet.management_url}/api/v2/fleet",
            json={"state": {"deployments": [deployment(asked)]}, "note": "flags"},
            trust_env=False,
            timeout=60,
        ).raise_for_status()
        fleet.wait_serving(agents=1)
        trio.run(answer_at, asked, fleet)


if __name__ == "__main__":
    main()
