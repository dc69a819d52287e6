"""The neighbour: short conversations, one after the other, each token with the time it came.

It is a process of its own, because the attacker is busy and would come late to what it measures.
``go`` on its standard input lets it ask, ``rest`` lets it finish what it has, and the end of the
input ends it. Each answer is a line of JSON on its standard output, and so is each moment in which
the machine itself was so busy that a sleeping thread woke late.

    python benchmarks/attack_neighbour.py HOST:PORT STREAMS TALK
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

TOKENS = 200
PAUSE_S = 0.05
PATIENCE_S = 60.0
WAKE_S = 0.01
LATE_S = 0.05


@attrs.frozen(kw_only=True)
class Talk:
    """How a stream is asked for, and what of it shows a token, the end, and an error.

    Attributes:
      body: that asks ``question``.
      tokens_in: how many there are in an answer.
    """

    path: str
    body: Callable[[str], Mapping[str, Any]]
    token: bytes
    tokens_in: Callable[[bytes], int]
    end: bytes
    error: bytes


TALKS: Mapping[str, Talk] = {
    "fleet": Talk(
        path="/api/v2/generate",
        body=lambda question: {
            "prompt": {"Conversation": {"messages": [{"role": "user", "content": question}]}},
            "max_tokens": TOKENS,
            "sampling": {"temperature": 0, "ignore_eos": True},
        },
        token=b"Token",
        tokens_in=lambda answer: answer.count(b'"GeneratedToken"') - answer.count(b'"Done"'),
        end=b'"Done"',
        error=b'"Error"',
    ),
    "server": Talk(
        path="/v1/chat/completions",
        body=lambda question: {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": TOKENS,
            "stream": True,
        },
        token=b'"content"',
        tokens_in=lambda answer: answer.count(b'"content"'),
        end=b"data: [DONE]",
        error=b'"error"',
    ),
}
"""With a model of the fleet, and with a server behind an agent."""


@attrs.frozen(kw_only=True)
class Heard:
    """One answer; times are monotonic seconds, and ``gap_s`` the longest between two tokens."""

    began_s: float
    ended_s: float
    first_s: float
    """From asking to the first token."""
    gap_s: float
    tokens: int
    problem: str | None


@attrs.frozen(kw_only=True)
class Late:
    """A thread that only sleeps woke so much too late."""

    at_s: float
    late_s: float


@attrs.define(eq=False)
class Neighbour:
    """The process, and what it has told so far; end it with :meth:`end`."""

    process: subprocess.Popen[str]
    heard: list[Heard] = attrs.field(factory=list)
    late: list[Late] = attrs.field(factory=list)
    _reader: threading.Thread = attrs.field(init=False)

    @classmethod
    def start(cls, address: str, streams: int, talk: str) -> Neighbour:
        """``talk``: its name."""
        return cls(
            subprocess.Popen(
                [sys.executable, str(Path(__file__)), address, str(streams), talk],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def go(self) -> None:
        self._say("go")

    def rest(self) -> None:
        self._say("rest")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5.0)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def since(self, began_s: float) -> list[Heard]:
        """Answers that ended after this moment."""
        return [heard for heard in list(self.heard) if heard.ended_s >= began_s]

    def latest_s(self, began_s: float) -> float:
        """The longest that the machine let a sleeper sleep too long, after this moment."""
        return max((late.late_s for late in list(self.late) if late.at_s >= began_s), default=0.0)

    def _say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            record = json.loads(line)
            if "late_s" in record:
                self.late.append(Late(**record))
            else:
                self.heard.append(Heard(**record))


# --- in the process ---------------------------------------------------------------------------


def ask(address: tuple[str, int], number: int, talk: Talk) -> Heard:
    """One conversation; an answer of exactly ``TOKENS`` tokens is right."""
    question = f"Tell me a long story about number {number}."
    body = json.dumps(talk.body(question)).encode()
    head = (
        f"POST {talk.path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "X-Paddler-Client: neighbour\r\nConnection: close\r\n\r\n"
    ).encode()
    began_s = last_s = time.monotonic()
    first_s, gap_s, received, problem = 0.0, 0.0, b"", None
    try:
        with socket.create_connection(address, timeout=PATIENCE_S) as client:
            client.sendall(head + body)
            while data := client.recv(1 << 16):
                now_s = time.monotonic()
                if first_s:
                    gap_s = max(gap_s, now_s - last_s)
                elif talk.token in data:
                    first_s = now_s - began_s
                last_s = now_s
                received += data
    except OSError as error:
        problem = f"{error!r} after {time.monotonic() - began_s:.1f} s"
    tokens = talk.tokens_in(received)
    if problem is None and (talk.end not in received or talk.error in received):
        problem = " ".join(received[-300:].decode(errors="replace").split())
    return Heard(
        began_s=began_s,
        ended_s=time.monotonic(),
        first_s=first_s or time.monotonic() - began_s,
        gap_s=gap_s,
        tokens=tokens,
        problem=problem,
    )


def _tell(record: Heard | Late, lock: threading.Lock) -> None:
    with lock:
        print(json.dumps(attrs.asdict(record)), flush=True)


def _ask_on(
    address: tuple[str, int], number: int, talk: Talk, may_go: threading.Event, lock: threading.Lock
) -> None:
    while True:
        may_go.wait()
        _tell(ask(address, number, talk), lock)
        time.sleep(PAUSE_S)


def _watch_machine(lock: threading.Lock) -> None:
    while True:
        began_s = time.monotonic()
        time.sleep(WAKE_S)
        late_s = time.monotonic() - began_s - WAKE_S
        if late_s > LATE_S:
            _tell(Late(at_s=time.monotonic(), late_s=late_s), lock)


def main(arguments: Sequence[str]) -> int:
    host, _, port = arguments[0].rpartition(":")
    talk = TALKS[arguments[2]]
    may_go, lock = threading.Event(), threading.Lock()
    threading.Thread(target=_watch_machine, args=(lock,), daemon=True).start()
    for number in range(int(arguments[1])):
        threading.Thread(
            target=_ask_on, args=((host, int(port)), number, talk, may_go, lock), daemon=True
        ).start()
    for line in sys.stdin:
        if line.strip() == "go":
            may_go.set()
        else:
            may_go.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
