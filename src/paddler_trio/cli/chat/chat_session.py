"""A conversation on a terminal: messages, and commands that begin with a slash."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

import attrs
import httpx
from rich.text import Text

from paddler_trio.cli.balancer_http import clear_errors, read_json, refuse_unless_success
from paddler_trio.cli.chat.chat_answer import Answer, Writer, ask, summary
from paddler_trio.cli.terminal import printable, stderr, stdout
from paddler_trio.errors import PaddlerError, WireError
from paddler_trio.wire.codec import structure
from paddler_trio.wire.trio.work import SamplingOverrides

try:
    import readline
except ImportError:  # a build of Python without it: keys are those of the terminal
    _READLINE: ModuleType | None = None
else:
    _READLINE = readline

FENCE: Final = '"""'
"""Begins and ends a block of several lines."""
PROMPT: Final = ">>> "
MORE: Final = "... "
MAX_HISTORY: Final = 1000


def history_file() -> Path:
    """Return where typed lines are kept, as other programs of this user keep theirs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return folder / "paddler-trio" / "chat_history"


@attrs.define(eq=False)
class LineReader:
    """Reads what is typed; a context manager that loads the history and stores it again.

    Args:
      history: the file of it; None for none.
      words: the words that Tab completes at the beginning of a line.
    """

    history: Path | None
    words: Sequence[str] = ()

    def __enter__(self) -> LineReader:
        if _READLINE is not None:
            _READLINE.parse_and_bind("tab: complete")
            _READLINE.set_completer_delims("")
            _READLINE.set_completer(self._completion)
            _READLINE.set_history_length(MAX_HISTORY)
            if self.history is not None:
                with self._told_of_problems():
                    _READLINE.read_history_file(self.history)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _READLINE is None:
            return
        if self.history is not None:
            with self._told_of_problems():
                self.history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.history.touch(mode=0o600)  # before anything is in it
                _READLINE.write_history_file(self.history)
        _READLINE.set_completer(None)

    def message(self) -> str:
        """Read a line, or a block between two `FENCE`.

        Errors:
          EOFError: there is no more.
          KeyboardInterrupt: what was begun is given up.
        """
        line = input(PROMPT)
        if not line.lstrip().startswith(FENCE):
            return line
        text = line.lstrip().removeprefix(FENCE)
        while not text.rstrip().endswith(FENCE):
            text += "\n" + input(MORE)
        return text.rstrip().removesuffix(FENCE).strip("\n")

    def _completion(self, begun: str, place: int) -> str | None:
        found = [word for word in self.words if word.startswith(begun)] if begun else []
        return found[place] if place < len(found) else None

    @contextmanager
    def _told_of_problems(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # the first conversation
        except OSError as error:
            stderr().print(printable(f"no history in {self.history}: {error.strerror or error}"))
            self.history = None


GENERATE_PATH: Final = "/api/v2/generate"
MODELS_PATH: Final = "/v1/models"
MAX_IMAGE_BYTES: Final = 20 * 1024 * 1024
"""The balancer's own limit of an image that it fetches; a body may have 32 MiB."""
MAX_TEXT_BYTES: Final = 1024 * 1024
_IMAGES: Final = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"BM": "bmp"}
HELP: Final = '''\
/set system TEXT            A system message; without TEXT, none
/set parameter NAME VALUE   Such as temperature 0.7, top_k 40, seed 1, stop END, max_tokens 100;
                            without VALUE as the fleet has it
/set think, /set nothink    Whether the model reasons first
/load [MODEL]               Answer with another model of the fleet; without MODEL, list them
/attach FILE                Send an image or a text file with the next message
/show                       What is set, and how long the conversation is
/stop                       Ctrl-C: stops an answer; what came of it stays
/clear                      Forget the conversation; what is set stays
/bye                        End; so does Ctrl-D
"""                         Begins and ends a message of several lines'''


class _UsageError(PaddlerError):
    """A command that was not written as it is meant."""


@attrs.define
class Conversation:
    """A conversation: what is said, and how it shall be answered.

    Args:
      model: the deployment that answers; None for the default one.
      attached: parts of the next message.
    """

    system: str | None = None
    max_tokens: int | None = None
    thinking: bool = False
    model: str | None = None
    stop: list[str] = attrs.field(factory=list)
    sampling: dict[str, object] = attrs.field(factory=dict)
    messages: list[dict[str, object]] = attrs.field(factory=list)
    attached: list[dict[str, object]] = attrs.field(factory=list)

    def body(self) -> dict[str, object]:
        """Return the request for an answer to all of it."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        prompt = {"messages": [*system, *self.messages], "thinking": self.thinking}
        body: dict[str, object] = {"prompt": {"Conversation": prompt}, "stop": self.stop}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.model is not None:
            body["model"] = self.model
        return {**body, "sampling": self.sampling}

    def say(self, text: str) -> None:
        """Add a message of the user, with what is attached."""
        parts = [*self.attached, {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": parts if self.attached else text})

    def set_parameter(self, name: str, text: str) -> None:
        """Set a parameter, or leave it to the fleet if `text` is empty.

        Errors:
          WireError: there is no such parameter, or it has no such value.
        """
        value = _value_of(text)
        if name == "stop":
            self.stop = [text] if text else []
        elif name == "max_tokens":
            if text and (not isinstance(value, int) or value < 1):
                raise _UsageError(f"max_tokens must be a whole number from 1, not {text!r}")
            self.max_tokens = value if isinstance(value, int) and text else None
        else:
            known = {field.name for field in attrs.fields(SamplingOverrides)}
            if name not in known:
                names = ", ".join(sorted({*known, "max_tokens", "stop"}))
                raise _UsageError(f"no parameter is called {name!r}; there are: {names}")
            if text:
                structure({name: value}, SamplingOverrides)
                self.sampling[name] = value
            else:
                self.sampling.pop(name, None)


@attrs.define(eq=False)
class ChatSession:
    """A conversation until its end; what fails is one line, and the conversation goes on."""

    http: httpx.Client
    address: str
    lines: LineReader
    conversation: Conversation

    def run(self) -> None:
        """Converse until /bye or the end of the input."""
        commands: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/load": self._load,
            "/attach": self._attach,
            "/show": self._show,
            "/stop": lambda _: _say("nothing is being answered; Ctrl-C stops an answer"),
            "/clear": self._clear,
            "/help": lambda _: stdout().print(HELP),
            "/?": lambda _: stdout().print(HELP),
        }
        self.lines.words = (*commands, "/bye", "/set system ", "/set parameter ")
        _say("/help lists commands, Ctrl-C stops an answer, Ctrl-D ends")
        while True:
            try:
                text = self.lines.message()
            except EOFError:
                stdout().print()
                return
            except KeyboardInterrupt:
                stdout().print()  # what was begun is given up
                continue
            word, _, rest = text.strip().partition(" ")
            if word == "/bye":
                return
            try:
                if word in commands:
                    commands[word](rest.strip())
                elif word.startswith("/") and "/" not in word[1:]:
                    raise _UsageError(f"no command is called {word}: see /help")
                elif word:
                    self._answer(text)
            except PaddlerError as error:
                _say(str(error))

    def _answer(self, text: str) -> None:
        conversation = self.conversation
        conversation.say(text)
        answer, writer = Answer(), Writer(silent=False)
        try:
            body = conversation.body()
            ask(self.http, self.address, GENERATE_PATH, body, answer=answer, writer=writer)
        except KeyboardInterrupt:
            writer.end()
            _say("stopped")
        finally:
            writer.end()
            if answer.content:
                conversation.messages.append({"role": "assistant", "content": answer.content})
                conversation.attached = []
            else:  # as if it had not been asked: two questions in a row are no conversation
                conversation.messages.pop()
        if answer.usage is not None:
            stderr().print(Text(summary(answer), style="dim"))

    def _set(self, text: str) -> None:
        what, _, rest = text.partition(" ")
        if what == "system":
            self.conversation.system = rest.strip() or None
        elif what == "parameter" and rest.strip():
            name, _, value = rest.strip().partition(" ")
            try:
                self.conversation.set_parameter(name, value.strip())
            except WireError as error:
                raise _UsageError(f"{name} cannot be {value.strip()!r}: {error}") from error
        elif what in {"think", "nothink"}:
            self.conversation.thinking = what == "think"
        else:
            raise _UsageError("/set takes system, parameter, think or nothink: see /help")

    def _load(self, name: str) -> None:
        with clear_errors(self.address):
            answer = self.http.get(MODELS_PATH)
            refuse_unless_success(answer)
        names = _model_names(answer.text)
        if not name:
            for each in names:
                stdout().print(printable(each))
        elif name in names:
            self.conversation.model = name
        elif Path(name).expanduser().is_file():
            self._attach(name)
        else:
            raise _UsageError(f"no model is called {name!r}; there are: {', '.join(names)}")

    def _attach(self, name: str) -> None:
        if not name:
            raise _UsageError("/attach FILE: an image, or a file of text")
        path = Path(name).expanduser()
        self.conversation.attached.append(_part_of(path))
        _say(f"{path.name} goes with the next message")

    def _show(self, _: str) -> None:
        shown = self.conversation
        parameters = {**shown.sampling, "max_tokens": shown.max_tokens, "stop": shown.stop or None}
        rows: dict[str, object] = {
            "model": shown.model or "the default one",
            "system": shown.system or "none",
            **{name: value for name, value in parameters.items() if value is not None},
            "thinking": "yes" if shown.thinking else "no",
            "messages": len(shown.messages),
        }
        if shown.attached:
            rows["attached"] = len(shown.attached)
        for name, value in rows.items():
            words = value if isinstance(value, str) else json.dumps(value)
            stdout().print(printable(f"{name:<12}{words}"))

    def _clear(self, _: str) -> None:
        self.conversation.messages.clear()
        self.conversation.attached.clear()


def _say(text: str) -> None:
    stderr().print(Text(printable(text), style="dim"))


def _value_of(text: str) -> object:
    """Return what a person wrote as a value: JSON, or else the text itself."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _model_names(text: str) -> list[str]:
    """Return the names of a list of models; an empty list for what is none."""
    try:
        listed: Any = read_json(text)
        return [str(each["id"]) for each in listed["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def _part_of(path: Path) -> dict[str, object]:
    """Return a file as a part of a message."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise _UsageError(f"cannot read {path}: {error.strerror}") from error
    kind = next((kind for magic, kind in _IMAGES.items() if content.startswith(magic)), None)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "webp"
    limit = MAX_TEXT_BYTES if kind is None else MAX_IMAGE_BYTES
    if len(content) > limit:
        raise _UsageError(f"{path} has more than {limit} bytes")
    if kind is not None:
        url = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    try:
        return {"type": "text", "text": f"{path.name}:\n{content.decode()}\n"}
    except UnicodeDecodeError:
        raise _UsageError(f"{path} is neither an image nor text in UTF-8") from None
