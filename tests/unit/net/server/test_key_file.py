"""The key file: what it keeps, whom it lets in, and what of a key can be read out of it."""

from __future__ import annotations

import hmac
import json
import stat
import threading
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.keys.api_keys import (
    MAX_DEPLOYMENTS,
    MAX_FILE_BYTES,
    MAX_KEYS,
    KeyFile,
    KeyScope,
    StoredKey,
    changing,
    check_name,
    new_secret,
    read_key_file,
    write_key_file,
)
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import ConfigurationError
from paddler_trio.system.durable import MAX_SECRET_CHARS, read_secret

INFERENCE = frozenset({KeyScope.INFERENCE})
MANAGEMENT = frozenset({KeyScope.MANAGEMENT})

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", fullmatch=True)
SCOPES = st.frozensets(st.sampled_from(KeyScope), min_size=1)


def stored(secret: str, name: str = "alice", scopes: frozenset[KeyScope] = INFERENCE) -> StoredKey:
    return StoredKey.of(secret, name=name, scopes=scopes, created="2026-01-31")


@given(st.lists(st.tuples(NAMES, SCOPES), unique_by=lambda each: each[0], max_size=5))
def test_a_file_reads_as_it_was_written_and_knows_exactly_its_own_keys(
    wanted: list[tuple[str, frozenset[KeyScope]]],
) -> None:
    content, secrets = KeyFile(), {}
    for name, scopes in wanted:
        secrets[name] = new_secret()
        content = content.having(stored(secrets[name], name, scopes))
    again = KeyFile.parse(content.render())
    assert again == content
    for name, scopes in wanted:
        found = again.find(secrets[name].encode())
        assert found is not None
        assert (found.name, found.scopes) == (name, scopes)
        assert again.find(secrets[name].encode() + b"x") is None
        assert secrets[name] not in content.render() + repr(content)
    assert again.find(b"") is None


def test_two_secrets_and_two_salts_of_one_secret_have_nothing_in_common() -> None:
    assert new_secret() != new_secret()
    secret = new_secret()
    assert stored(secret).digest != stored(secret).digest


@pytest.mark.parametrize("shown", ["first", "last", "none of them", "x" * 10_000])
def test_whatever_is_shown_as_much_is_compared(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes tells nothing: all keys are compared whole, and what is too long none."""
    content = KeyFile()
    for name in ("first", "middle", "last"):
        content = content.having(stored(name, name))
    compared: list[int] = []
    compare = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(len(one) + len(other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    found = content.find(shown.encode())
    assert (found and found.name) == (shown if shown in ("first", "last") else None)
    assert compared == ([] if len(shown) == 10_000 else [64] * 3)


def test_revoking_the_last_key_leaves_its_scope_guarded() -> None:
    content = KeyFile().having(stored("a", "a", INFERENCE)).having(stored("b", "b", MANAGEMENT))
    left = KeyFile.parse(content.without("a").without("b").render())
    assert left.keys == ()
    assert left.guarded == INFERENCE | MANAGEMENT


def test_no_key_makes_the_file_too_large_to_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    many = frozenset(f"{place:02}" + "d" * 61 for place in range(MAX_DEPLOYMENTS))
    long = attrs.evolve(stored(new_secret()), deployments=many)
    keys = [attrs.evolve(long, name=f"k{place:04}") for place in range(MAX_KEYS)]
    one, two = (len(KeyFile(tuple(keys[:count])).render()) for count in (1, 2))
    room = 1 + (MAX_FILE_BYTES - one) // (two - one)
    content = KeyFile(tuple(keys[:room]))
    with pytest.raises(ConfigurationError, match="the limit is 1048576; revoke"):
        content.having(keys[room])
    write_key_file(path, content)
    assert read_key_file(path).keys == content.keys
    assert len(content.having(stored(new_secret(), "short")).keys) == room + 1, "it still fits"


def test_names_are_unique_known_and_plain() -> None:
    content = KeyFile().having(stored("a"))
    with pytest.raises(ConfigurationError, match="'alice' already"):
        content.having(stored("b"))
    with pytest.raises(ConfigurationError, match="no key named 'bob'; there are: alice"):
        content.without("bob")
    for bad in ("", "a b", 'a"b', "-a", "a" * 65, "ä", "a\n"):
        with pytest.raises(ConfigurationError, match="cannot name a key"):
            check_name(bad)


def test_a_file_has_a_limit_that_its_error_names() -> None:
    key = stored("a")
    full = KeyFile(tuple(attrs.evolve(key, name=f"k{number}") for number in range(MAX_KEYS)))
    with pytest.raises(ConfigurationError, match=f"the limit is {MAX_KEYS}"):
        full.having(key)


@pytest.mark.parametrize(
    "text",
    [
        "pt-thisIsAPlainKey",
        "[]",
        "{}",
        '{"version": 3, "guarded": [], "keys": []}',
        '{"version": 1, "guarded": ["root"], "keys": []}',
        '{"version": 1, "guarded": [], "keys": [{"name": "a"}]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_key_file_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"keys\.json") as refused:
        read_key_file(path)
    assert "thisIsAPlainKey" not in str(refused.value)


def test_a_damaged_entry_is_refused() -> None:
    content = json.loads(KeyFile().having(stored("a")).render())
    for field, value in [("sha256", "00"), ("salt", "zz"), ("scopes", "inference"), ("name", 1)]:
        broken = {**content, "keys": [{**content["keys"][0], field: value}]}
        with pytest.raises(ConfigurationError, match=rf"keys\[0\].{field}"):
            KeyFile.parse(json.dumps(broken))
    twice = {**content, "keys": content["keys"] * 2}
    with pytest.raises(ConfigurationError, match="the same name"):
        KeyFile.parse(json.dumps(twice))


def test_the_file_is_its_owners_alone_and_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with changing(path):
        write_key_file(path, KeyFile().having(stored("a")))
    before = path.stat().st_ino
    with changing(path):
        write_key_file(path, KeyFile())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != before
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"cannot open .*nowhere"),
        changing(tmp_path / "nowhere" / "keys.json"),
    ):
        pass


def test_a_secret_file_holds_one_key_and_errors_never_show_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("  pt-abc\n")
    assert read_secret(path) == "pt-abc"
    for bad in ("", "\n", "sesame open", "x" * (MAX_SECRET_CHARS + 1), "schlüssel"):
        path.write_text(bad)
        with pytest.raises(ConfigurationError, match="must hold one key") as refused:
            read_secret(path)
        assert not bad.strip() or bad.strip() not in str(refused.value)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_secret(tmp_path / "none")


# ----------------------------------------------------------------------------------- the ring


def test_a_file_without_any_scope_does_not_pretend_to_guard(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_key_file(path, KeyFile())
    with pytest.raises(ConfigurationError, match="holds no key"):
        KeyRing.read(path)


async def test_reading_again_takes_new_keys_and_drops_revoked_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_key_file(path, KeyFile().having(stored("old", "old")))
    ring = KeyRing.read(path)
    assert ring.guarded == INFERENCE
    write_key_file(path, KeyFile().having(stored("new", "new", MANAGEMENT)))
    await ring.reload()
    assert ring.find(b"old") is None
    found = ring.find(b"new")
    assert found is not None
    assert found.name == "new"
    assert ring.guarded == INFERENCE | MANAGEMENT


async def test_a_slow_reading_brings_no_revoked_key_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal comes while a key is revoked over HTTP: the file was read before and after it."""
    path, secret = tmp_path / "keys.json", new_secret()
    alice, bob = stored(secret, "alice"), stored(new_secret(), "bob")
    write_key_file(path, KeyFile((alice, bob)))
    ring = KeyRing.read(path)
    has_read, may_go_on = threading.Event(), threading.Event()

    def read_slowly(path: Path) -> KeyFile:
        content = read_key_file(path)
        if not has_read.is_set():
            has_read.set()
            may_go_on.wait(10)
        return content

    monkeypatch.setattr("paddler_trio.balancer.keys.key_ring.read_key_file", read_slowly)
    is_read = trio.Event()
    ring.on_reload(is_read.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ring.reload)
        await trio.to_thread.run_sync(has_read.wait, 10)
        write_key_file(path, KeyFile((bob,)))
        nursery.start_soon(ring.reload)
        with trio.move_on_after(0.1):
            await is_read.wait()
        may_go_on.set()
    assert ring.find(secret.encode()) is None


async def test_a_file_that_broke_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_key_file(path, KeyFile().having(stored("a")))
    ring = KeyRing.read(path)
    path.write_text("{")
    await ring.reload()
    assert ring.find(b"a") is not None
    path.unlink()
    await ring.reload()
    assert ring.find(b"a") is not None


# ------------------------------------------------------------------------------ deployments


@given(st.frozensets(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True), max_size=5))
def test_a_key_is_limited_to_the_deployments_that_it_was_made_for(names: frozenset[str]) -> None:
    key = attrs.evolve(stored("a"), deployments=names)
    (again,) = KeyFile.parse(KeyFile().having(key).render()).keys
    assert again == key


def test_a_file_without_limits_is_written_as_it_always_was() -> None:
    (key,) = json.loads(KeyFile().having(stored("a")).render())["keys"]
    assert set(key) == {"name", "scopes", "created", "salt", "sha256"}


@pytest.mark.parametrize(
    ("deployments", "why"),
    [
        ([], "must be a list of 1 to 64 names"),
        ("coder", "must be a list of 1 to 64 names"),
        ([f"m{number}" for number in range(65)], "must be a list of 1 to 64 names"),
        (["a b"], "'a b' names no deployment and no preset"),
        ([7], "names no deployment and no preset"),
    ],
)
def test_limits_that_are_none_are_refused_and_not_left_out(deployments: object, why: str) -> None:
    content = json.loads(KeyFile().having(stored("a")).render())
    content["keys"][0]["deployments"] = deployments
    with pytest.raises(ConfigurationError, match=why):
        KeyFile.parse(json.dumps(content))
