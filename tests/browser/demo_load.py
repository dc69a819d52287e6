"""Clients that keep a fleet busy: several names, long and short questions, some that give up."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from no_tls import NO_TLS

CLIENTS = ("web-shop", "support-bot", "nightly-eval", "notebook")
TIMEOUT_S = 120.0
NOTES = (
    "The pump of the north tank was serviced in May and its seal replaced.",
    "Pressure fell twice in June, both times after the filter had been cleaned.",
    "The supplier recommends a new gasket when the flow is below nine litres.",
    "Operators noted a hum at night that went away when the valve was half open.",
)
QUESTIONS = (
    "What should we check first?",
    "Summarise this in three sentences.",
    "Which of these facts matter for the next service?",
    "Write a friendly mail about it.",
)


@contextmanager
def loading(base: str, *, clients: int, seed: int = 1) -> Iterator[None]:
    """Until the block is left, as many clients as this ask one question after the other.

    Args:
      base: URL of the inference port, without a slash at its end.
    """
    is_over = threading.Event()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            _ask_on(base, CLIENTS[number % len(CLIENTS)], random.Random(seed + number), is_over)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(number,), name=f"client {number}")
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert not failures, failures


def _ask_on(base: str, name: str, chance: random.Random, is_over: threading.Event) -> None:
    with httpx.Client(trust_env=False, verify=NO_TLS, timeout=TIMEOUT_S) as http:
        while not is_over.is_set():
            notes = " ".join(chance.choices(NOTES, k=chance.choice((1, 2, 4, 12))))
            body = {
                "model": "default",
                "messages": [
                    {"role": "system", "content": f"You help a plant's operators. {NOTES[0]}"},
                    {"role": "user", "content": f"{notes} {chance.choice(QUESTIONS)}"},
                ],
                "max_tokens": chance.choice((40, 120, 250, 400)),
                "stream": True,
            }
            headers = {"X-Paddler-Client": name}
            patience = chance.choice((10, 10_000, 10_000, 10_000, 10_000))
            url = f"{base}/v1/chat/completions"
            with http.stream("POST", url, json=body, headers=headers) as answer:
                for number, _ in enumerate(answer.iter_lines()):
                    if number > patience or is_over.is_set():
                        break  # this one gives up
            is_over.wait(chance.expovariate(2.0))
