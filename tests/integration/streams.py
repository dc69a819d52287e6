"""Clients of the native HTTP listener, many at once, that remember what happened to them."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Sequence

import attrs
import h11
import trio

RAW = "/api/v1/continue_from_raw_prompt"
CONVERSATION = "/api/v1/continue_from_conversation_history"
PATIENCE_S = 100.0


@attrs.define
class Heard:
    """What one client heard, in order; times are monotonic seconds."""

    text: str = ""
    tokens: int = 0
    endings: list[str] = attrs.field(factory=list)
    """Tags of ending results, or ``Error <code>``; exactly one if all is well."""
    error: str | None = None
    lines_after_ending: int = 0
    generated_by: list[str] = attrs.field(factory=list)
    usage: dict[str, int] = attrs.field(factory=dict)
    sent_s: float = 0.0
    first_token_s: float | None = None
    was_cancelled: bool = False

    def take(self, line: str) -> None:
        message = json.loads(line)
        if self.endings:
            self.lines_after_ending += 1
        if "Error" in message:
            error = message["Error"]["error"]
            self.endings.append(f"Error {error['code']}")
            self.error = error["description"]
            return
        response = message["Response"]
        name = response["generated_by"]
        if not self.generated_by or self.generated_by[-1] != name:
            self.generated_by.append(name)
        (tag, value) = next(iter(response["response"]["GeneratedToken"].items()))
        if tag in ("ContentToken", "ReasoningToken", "UndeterminableToken", "ToolCallToken"):
            if self.first_token_s is None:
                self.first_token_s = time.monotonic()
            self.text += value
            self.tokens += 1
        elif tag != "Progress":
            self.endings.append(tag)
            if tag == "Done":
                self.usage = value["usage"]


def story(number: int, *, max_tokens: int = 200) -> dict[str, object]:
    """A question that the bundled model answers at length, different for each number."""
    return {
        "add_generation_prompt": True,
        "conversation_history": [
            {"role": "user", "content": f"Tell me a long story about number {number}."}
        ],
        "enable_thinking": False,
        "max_tokens": max_tokens,
    }


def song(*, max_tokens: int = 1500) -> dict[str, object]:
    """A raw prompt whose answer never ends by itself before its limit."""
    endless = {"type": "gbnf", "grammar": 'root ::= "la " root', "root": "root"}
    return {"raw_prompt": "Sing:", "max_tokens": max_tokens, "grammar": endless}


def counted(number: int) -> str:
    """What :func:`count` is answered with, of many tokens and different for each number."""
    return f"{number}: " + " ".join(str(each) for each in range(60))


def count(number: int) -> dict[str, object]:
    """A question with one answer, whatever the model thinks and in whichever batches it does."""
    literal = {"type": "gbnf", "grammar": f'root ::= "{counted(number)}"', "root": "root"}
    return {**story(number, max_tokens=400), "grammar": literal}


async def listen(
    address: str,
    path: str,
    body: object,
    heard: Heard,
    *,
    leave_after_tokens: int | None = None,
    headers: Sequence[tuple[str, str]] = (),
    tls: ssl.SSLContext | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Send one request and hear it to its end, or leave in the middle.

    Started means that the balancer has it in its books: the status is sent at that moment. A
    connection that is cut ends this too; what was heard shows it.
    """
    host, _, port = address.rpartition(":")
    text = json.dumps(body).encode()
    http = h11.Connection(h11.CLIENT)
    request = h11.Request(
        method="POST",
        target=path,
        headers=[
            ("Host", address),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(text))),
            *headers,
        ],
    )
    heard.sent_s = time.monotonic()
    rest = b""
    with trio.fail_after(PATIENCE_S):
        async with await _connected(host, int(port), tls) as stream:
            await stream.send_all(http.send(request) + http.send(h11.Data(data=text)))
            http.send(h11.EndOfMessage())
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some())
                elif isinstance(event, h11.Response):
                    assert event.status_code == 200, event
                    task_status.started()
                elif isinstance(event, h11.Data):
                    *lines, rest = (rest + bytes(event.data)).split(b"\n")
                    for line in lines:
                        heard.take(line.decode())
                    if leave_after_tokens is not None and heard.tokens >= leave_after_tokens:
                        heard.was_cancelled = True
                        return
                else:
                    assert isinstance(event, h11.EndOfMessage), event
                    assert rest == b"", rest
                    return


async def _connected(host: str, port: int, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(host, port)
    if tls is None:
        return stream
    return trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)


async def until_first_tokens(all_heard: list[Heard], count: int) -> None:
    """Return when ``count`` of these clients have heard a token."""
    while sum(heard.tokens > 0 for heard in all_heard) < count:  # noqa: ASYNC110
        await trio.sleep(0.005)  # the clients' own progress is all there is to watch
