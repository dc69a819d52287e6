"""Pushing: which files are sent under which names, and what happens when sending fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import typer
from rich.console import Console

from paddler_trio.cli.balancer_http import BalancerRefusedError, BalancerUnreachableError
from paddler_trio.cli.model import push_run
from paddler_trio.cli.model.push_run import (
    PROBE_BYTES,
    RETRIES,
    PushDisplay,
    local_files,
    push_display,
    push_model,
)
from paddler_trio.cli.model.store_client import MISMATCH
from paddler_trio.cli.model.store_rows import store_rows
from paddler_trio.errors import ConfigurationError, PaddlerError
from paddler_trio.models.pushed.pushed_model import read_manifest

DATA = b"GGUF" + bytes(range(256)) * 300
SHA256 = hashlib.sha256(DATA).hexdigest()


@attrs.define
class Store:
    """A store as its client sees it; ``fail`` may raise before a part is taken."""

    here: dict[str, bytes] = attrs.field(factory=dict)
    whole: set[str] = attrs.field(factory=set)
    manifests: list[bytes] = attrs.field(factory=list)
    sent_bytes: int = 0
    evicts_once: bool = False
    fail: Callable[[Store], None] = lambda store: None
    answers: list[BalancerRefusedError] = attrs.field(factory=list)
    """To the first questions, one after the other."""

    def here_bytes(self, sha256: str) -> int | None:
        if self.answers:
            raise self.answers.pop(0)
        return None if sha256 in self.whole else len(self.here.get(sha256, b""))

    def put_blob(
        self, sha256: str, start: int, stop: int, total_bytes: int, pieces: Iterator[bytes]
    ) -> None:
        body = b"".join(pieces)
        assert len(body) == stop - start
        self.sent_bytes += len(body)
        self.fail(self)
        data = self.here.get(sha256, b"")[:start] + body
        self.here[sha256] = data
        if len(data) == total_bytes:
            if hashlib.sha256(data).hexdigest() != sha256:
                del self.here[sha256]
                raise BalancerRefusedError(MISMATCH, "another hash")
            self.whole.add(sha256)

    def put_manifest(self, sha256: str, text: bytes) -> None:
        assert hashlib.sha256(text).hexdigest() == sha256
        if self.evicts_once:
            self.evicts_once = False
            self.whole.clear()
            self.here.clear()
            raise BalancerRefusedError(409, "push these files first")
        self.manifests.append(text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "my model.gguf"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(push_run.time, "sleep", slept.append)
    return slept


def push(store: Store, model: Path, **more: object) -> push_run.PushedNames:
    console = Console(width=200, force_terminal=False, quiet=True)
    with push_display(console, as_json=False) as display:
        return push_model(
            store,  # type: ignore[arg-type]
            model,
            more.get("projection"),  # type: ignore[arg-type]
            name=more.get("name"),  # type: ignore[arg-type]
            display=display,
        )


def test_what_is_missing_is_sent_once_and_named(model: Path, tmp_path: Path) -> None:
    projection = tmp_path / "mmproj.gguf"
    projection.write_bytes(b"GGUF sees")
    store = Store()
    names = push(store, model, projection=projection)
    (text,) = store.manifests
    manifest = read_manifest(text)
    assert names.model == f"store://sha256/{manifest.sha256}/my model.gguf"
    assert names.projection == f"store://sha256/{manifest.sha256}/mmproj.gguf"
    assert store.sent_bytes == len(DATA) + len(b"GGUF sees")
    assert push(store, model, projection=projection) == names
    assert store.sent_bytes == len(DATA) + len(b"GGUF sees"), "nothing twice"
    assert push(store, model, name="other").model.endswith("/other.gguf")


def test_a_model_in_parts_keeps_its_numbers_under_another_name(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(DATA)
    for first in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        files = local_files(tmp_path / first, "q.gguf")
        assert [file.name for file in files] == [f"q-0000{n}-of-00002.gguf" for n in (1, 2)]
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(typer.BadParameter, match=r"m-00002-of-00002\.gguf: No such file"):
        local_files(tmp_path / "m-00001-of-00002.gguf", None)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m.bin", DATA, "does not end in .gguf"),
        ("m.gguf", b"GGU", "is no GGUF file"),
        (".m.gguf", DATA, "give --name"),
        ("ä.gguf", DATA, "give --name"),
    ],
)
def test_what_is_no_model_is_refused_before_anything_is_sent(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    store = Store()
    with pytest.raises(typer.BadParameter, match=words):
        push(store, tmp_path / name)
    with pytest.raises(typer.BadParameter):
        push(store, tmp_path)
    assert store.sent_bytes == 0


def test_a_push_goes_on_after_failures_that_pass(model: Path, pauses: list[float]) -> None:
    problems: list[PaddlerError] = [
        BalancerUnreachableError("gone"),
        BalancerRefusedError(503, "starting"),
        BalancerRefusedError(409, "busy"),
    ]

    def fail(store: Store) -> None:
        if problems:
            raise problems.pop(0)

    store = Store({SHA256: DATA[:5000]}, fail=fail)
    push(store, model)
    assert pauses == [0.5, 1.0, 2.0]
    assert store.sent_bytes == 3 * PROBE_BYTES + len(DATA) - 5000, "a refusal costs a little"


def test_a_store_that_is_starting_is_waited_for_and_none_is_not(
    model: Path, pauses: list[float]
) -> None:
    starting = BalancerRefusedError(503, "starting")
    store = Store(answers=[starting, starting])
    push(store, model)
    assert pauses == [0.5, 1.0]
    assert store.sent_bytes == len(DATA)
    with pytest.raises(BalancerRefusedError, match="no store"):
        push(Store(answers=[BalancerRefusedError(501, "no store")]), model)
    assert len(pauses) == 2


def test_a_push_without_any_progress_ends_with_the_last_problem(
    model: Path, pauses: list[float]
) -> None:
    def fail(store: Store) -> None:
        raise BalancerUnreachableError("gone for good")

    with pytest.raises(BalancerUnreachableError, match="for good"):
        push(Store(fail=fail), model)
    assert len(pauses) == RETRIES
    assert max(pauses) == 15.0


def test_a_file_that_went_before_it_was_named_is_sent_again(
    model: Path, pauses: list[float]
) -> None:
    store = Store(evicts_once=True)
    push(store, model)
    assert store.sent_bytes == 2 * len(DATA)
    assert len(store.manifests) == 1
    assert pauses == [0.5]


def test_what_cannot_succeed_is_not_tried_again(model: Path, pauses: list[float]) -> None:
    def fail(store: Store) -> None:
        raise BalancerRefusedError(507, "no room")

    with pytest.raises(BalancerRefusedError, match="no room"):
        push(Store(fail=fail), model)
    assert pauses == []


def test_damaged_leftovers_are_sent_anew_once_and_a_changing_file_is_not(
    model: Path, pauses: list[float]
) -> None:
    store = Store({SHA256: b"damaged" + DATA[7:5000]})
    push(store, model)
    assert store.whole == {SHA256}

    def change(store: Store) -> None:
        model.write_bytes(DATA[:-1] + b"x")

    with pytest.raises(BalancerRefusedError, match="changed while it was sent"):
        push(Store(fail=change), model)


def test_a_file_that_becomes_shorter_is_named(model: Path) -> None:
    def cut(store: Store) -> None:
        model.write_bytes(DATA[:PROBE_BYTES])

    with pytest.raises(ConfigurationError, match="became shorter"):
        push(Store(fail=cut), model)


def test_all_bytes_without_a_verdict_are_asked_about_again(model: Path) -> None:
    """The store was killed while it compared the hash: the last byte makes it compare again."""
    store = Store({SHA256: DATA})
    push(store, model)
    assert store.whole == {SHA256}
    assert store.sent_bytes == 1


def test_progress_is_json_for_scripts_and_at_most_four_lines_a_second(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("paddler_trio.cli.model.push_run.time.monotonic", lambda: now[0])
    with push_display(Console(), as_json=True) as display:
        for step in range(101):
            now[0] = step / 100
            display.show("sending", "m.gguf", step, 100)
    lines = [json.loads(line)["progress"] for line in capsys.readouterr().out.splitlines()]
    assert [line["current_bytes"] for line in lines] == [0, 25, 50, 75, 100]
    assert lines[2]["bytes_per_s"] == 100
    assert lines[2]["remaining_s"] == 0


def test_a_pipe_gets_one_line_for_each_step() -> None:
    console = Console(width=200, no_color=True, force_terminal=False)
    with console.capture() as capture, push_display(console, as_json=False) as display:
        assert isinstance(display, PushDisplay)
        for done in (0, 500, 1000):
            display.show("hashing", "m.gguf", done, 1000)
        display.wait("m.gguf", "gone; next attempt in 1 s")
        display.show("sending", "m.gguf", 0, 1000)
    assert capture.get().splitlines() == [
        "m.gguf (1.0 kB): hashing",
        "m.gguf: gone; next attempt in 1 s",
        "m.gguf (1.0 kB): sending",
    ]


def test_a_store_is_listed_with_what_is_arriving() -> None:
    source = f"store://sha256/{'a' * 64}/m.gguf"
    file = {"key": "pushed/blobs/x", "names": [source], "size_bytes": 1000}
    listing: dict[str, object] = {
        "files": [
            file | {"is_whole": True, "is_verified": True, "is_desired": True, "last_use_s": 0.5},
            file | {"key": "pushed/manifests/y"},
            file | {"key": "hub/z", "names": [], "is_whole": False},
        ],
        "arriving": [{"source": "org/repo/main/m.gguf", "size_bytes": None}],
    }
    pushed, left, arriving = store_rows(listing)
    assert pushed[:3] == (source, "1.0 kB", "store")
    assert pushed[4:] == ("yes", "desired")
    assert (left[0], left[5]) == ("hub/z", "left of a download")
    assert (arriving[0], arriving[5]) == ("org/repo/main/m.gguf", "arriving")
    assert store_rows({}) == []
