"""Running ``top``: the feed, the keys, the signals and the screen, each a task of one nursery.

Whatever ends it (a key, a signal, a lost terminal, an error), the terminal is what it was before.
A balancer that is away, or is started again, is waited for; what was seen last stays on the screen.

Keys of a terminal, one by one: the terminal is made to send them at once, and put back.

Ctrl-C still interrupts. Ctrl-Z is left to the terminal too; whoever holds the screen has to give it
back then.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.live import Live

from paddler_trio.cli.balancer_http import (
    BalancerRefusedError,
    BalancerUnreachableError,
    BalancerVersionError,
)
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.live.explain_text import waterfall
from paddler_trio.cli.live.feed_link import FeedLink
from paddler_trio.cli.live.live_picture import TOPICS, LivePicture, read_view
from paddler_trio.cli.live.request_views import RequestDetail
from paddler_trio.cli.live.top_screen import Link, screen
from paddler_trio.cli.live.top_view import (
    Action,
    CancelRequest,
    DrainAgent,
    ExplainRequest,
    Quit,
    TopView,
)
from paddler_trio.errors import PaddlerError
from paddler_trio.system.synchronization import Changes

ESCAPE: Final = "\x1b"
ESCAPE_WAIT_S: Final = 0.05
"""A sequence of an arrow arrives as a whole; the key Esc comes alone."""
MAX_PENDING: Final = 16
_SEQUENCES: Final = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[Z": "back tab",
}
_INTRODUCERS: Final = "[O"
_NAMES: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
}


@attrs.define
class KeyDecoder:
    """Characters as they arrive become names of keys; a printable character is its own name."""

    _pending: str = attrs.field(default="", init=False)

    @property
    def is_waiting(self) -> bool:
        """An Esc has arrived that may be the beginning of a sequence."""
        return bool(self._pending)

    def feed(self, text: str) -> list[str]:
        """The keys that are complete now."""
        keys = []
        for character in text:
            if self._pending == ESCAPE and character not in _INTRODUCERS:
                keys += self.flush()  # the key Esc, and another one soon after it
            if self._pending:
                self._pending += character
                if (key := self._sequence()) is not None:
                    self._pending = ""
                    keys += [key] if key else []
            elif character == ESCAPE:
                self._pending = ESCAPE
            elif character in _NAMES:
                keys.append(_NAMES[character])
            elif character.isprintable():
                keys.append(character)
        return keys

    def flush(self) -> list[str]:
        """Nothing followed: what was pending was the key Esc, or is no sequence at all."""
        was, self._pending = self._pending, ""
        return ["escape"] if was == ESCAPE else []

    def _sequence(self) -> str | None:
        """The key that is pending; empty for one that is not known, None if more has to come."""
        body = self._pending[1:]
        if body in _SEQUENCES:
            return _SEQUENCES[body]
        if len(body) > MAX_PENDING:
            return ""
        is_complete = len(body) > 1 and (body[-1].isalpha() or body[-1] == "~")
        return "" if is_complete else None


@contextmanager
def single_keys(terminal: int) -> Iterator[None]:
    """Within the block the terminal of this descriptor sends keys at once and shows none."""
    before = termios.tcgetattr(terminal)
    changed = termios.tcgetattr(terminal)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    termios.tcsetattr(terminal, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # a terminal that hung up has nothing to be put back
            termios.tcsetattr(terminal, termios.TCSANOW, before)


FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 3.0
TICK_S: Final = 1.0
"""Ages on the screen grow without any event."""
LEAST_S: Final = 0.05
"""Between two drawings."""
READ_BYTES: Final = 1024
MAX_ORDERS: Final = 8
"""Under way at once; a finger that stays on a key makes no more."""
PERMANENT: Final = frozenset({400, 401, 403, 404})
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def first_picture(feed: FeedLink) -> LivePicture:
    """One look; BalancerUnreachableError, BalancerRefusedError."""
    picture = LivePicture()
    async with aclosing(feed.events(TOPICS)) as events:
        async for event in events:
            picture.apply(event)
            break
    return picture


async def look_once(management: ManagementFlags) -> LivePicture:
    """Return one look, with a conversation of its own."""
    feed = await trio.to_thread.run_sync(FeedLink.open, management)
    try:
        return await first_picture(feed)
    finally:
        await _close(feed)


async def run_top(management: ManagementFlags, console: Console, view: TopView) -> int:
    """Show the fleet until somebody has seen enough; the exit code.

    Args:
      view: what is chosen at the beginning.

    Errors:
      BalancerUnreachableError: the balancer cannot be reached at the beginning.
      BalancerRefusedError: it has no feed, or asks for another key.
    """
    feed = await trio.to_thread.run_sync(FeedLink.open, management)
    try:
        top = Top(feed, console, await first_picture(feed), sys.stdin.fileno(), view)
        with single_keys(top.terminal):
            return await top.run()
    finally:
        await _close(feed)


@attrs.define(eq=False)
class Top:
    """See the module docstring; ``terminal`` is the descriptor that keys come from."""

    feed: FeedLink
    console: Console
    picture: LivePicture
    terminal: int
    view: TopView = attrs.field(factory=TopView)
    _received_s: float = attrs.field(factory=trio.current_time, init=False)
    _lost: str | None = attrs.field(default=None, init=False)
    _lost_s: float = attrs.field(default=0.0, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)
    _orders: int = attrs.field(default=0, init=False)
    _failure: PaddlerError | None = attrs.field(default=None, init=False)
    _exit_code: int = attrs.field(default=0, init=False)

    async def run(self) -> int:
        """The exit code; what cannot be mended by waiting is raised once the screen is left."""
        with Live(console=self.console, screen=True, auto_refresh=False) as live:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch_signals, nursery.cancel_scope, live)
                nursery.start_soon(self._follow, nursery.cancel_scope)
                nursery.start_soon(self._read_keys, nursery)
                await self._draw(live)
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    @property
    def _now_ms(self) -> int:
        """The balancer's clock, which goes on between two events as ours does."""
        at_s = trio.current_time() if self._lost is None else self._lost_s
        return self.picture.now_ms + round(max(0.0, at_s - self._received_s) * 1000)

    # ------------------------------------------------------------------------------ the screen

    async def _draw(self, live: Live) -> None:
        while True:
            seen = self._changes.ordinal
            lost_ms = 0.0 if self._lost is None else (trio.current_time() - self._lost_s) * 1000
            size = self.console.size
            shown = screen(
                self.picture,
                self.view,
                Link(self.feed.address, self._lost, lost_ms),
                now_ms=self._now_ms,
                size=(size.width, size.height),
            )
            live.update(shown, refresh=True)
            await trio.sleep(LEAST_S)
            with trio.move_on_after(TICK_S):
                await self._changes.wait_beyond(seen)

    async def _watch_signals(
        self,
        everything: trio.CancelScope,
        live: Live,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        listened = (*SIGNALS, signal.SIGWINCH, signal.SIGTSTP)
        with trio.open_signal_receiver(*listened) as received:
            task_status.started()
            async for number in received:
                if number in SIGNALS:
                    self._exit_code = 128 + number
                    everything.cancel(reason=f"signal {number}")
                    return
                if number == signal.SIGTSTP:
                    with _given_back(live, self.terminal):
                        os.kill(os.getpid(), signal.SIGSTOP)
                self._changes.notify()

    # -------------------------------------------------------------------------------- the feed

    async def _follow(self, everything: trio.CancelScope) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async for event in self.feed.events(TOPICS, after=self.picture.event_id):
                    self.picture.apply(event)
                    self._received_s, self._lost, pause_s = trio.current_time(), None, FIRST_PAUSE_S
                    self._changes.notify()
            except BalancerVersionError as error:
                self._failure = error
                everything.cancel(reason="the balancer is of another version")
            except BalancerRefusedError as error:
                if error.status in PERMANENT:
                    self._failure = error
                    everything.cancel(reason="the balancer refuses")
                self._lose(str(error))
            except BalancerUnreachableError as error:
                self._lose(str(error))
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost_s = trio.current_time()
        self._lost = reason
        self._changes.notify()

    # -------------------------------------------------------------------------------- the keys

    async def _read_keys(self, nursery: trio.Nursery) -> None:
        decoder = KeyDecoder()
        while True:
            with trio.move_on_after(ESCAPE_WAIT_S if decoder.is_waiting else float("inf")) as wait:
                await trio.lowlevel.wait_readable(self.terminal)
            if wait.cancelled_caught:
                keys = decoder.flush()
            else:
                try:
                    data = os.read(self.terminal, READ_BYTES)
                except OSError:  # the terminal hung up
                    data = b""
                if not data:
                    nursery.cancel_scope.cancel(reason="the terminal is gone")
                    return
                keys = decoder.feed(data.decode(errors="ignore"))
            for key in keys:
                action = self.view.press(key, self.picture, self._now_ms)
                if isinstance(action, Quit):
                    nursery.cancel_scope.cancel(reason="seen enough")
                elif action is not None and self._orders < MAX_ORDERS:
                    self._orders += 1
                    nursery.start_soon(self._carry_out, action)
            self._changes.notify()

    async def _carry_out(self, action: Action) -> None:
        try:
            self.view.message = await self._done(action)
        except PaddlerError as error:
            self.view.message = str(error)
        finally:
            self._orders -= 1
            self._changes.notify()

    async def _done(self, action: Action) -> str:
        """Return what to say about an order."""
        match action:
            case CancelRequest(key):
                await self.feed.cancel(key)
                return f"request {key} is cancelled"
            case DrainAgent(agent, label, drained):
                await self.feed.drain(agent, drained=drained)
                return f"{label} is drained" if drained else f"{label} gets work again"
            case ExplainRequest(key):
                raw = await self.feed.request(key)
                detail = read_view(raw, RequestDetail)
                self.view.explain(waterfall(detail, width=self.console.size.width))
        return ""


@contextmanager
def _given_back(live: Live, terminal: int) -> Iterator[None]:
    """Within the block the terminal is the shell's again, as it expects it after Ctrl-Z."""
    ours = termios.tcgetattr(terminal)
    shells = termios.tcgetattr(terminal)
    shells[3] |= termios.ICANON | termios.ECHO
    live.console.set_alt_screen(False)
    live.console.show_cursor(True)
    termios.tcsetattr(terminal, termios.TCSANOW, shells)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, ours)
        live.console.show_cursor(False)
        live.console.set_alt_screen(True)


async def _close(feed: FeedLink) -> None:
    with trio.CancelScope(shield=True), trio.move_on_after(1):
        await feed.close()
