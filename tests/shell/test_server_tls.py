"""The certificate in use: read again on request and by itself, never worse than before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog.testing
import trio

from certificates import Authority, Pair
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.server_context import (
    ServerCertificate,
    TlsFiles,
    read_server_certificate,
)
from paddler_trio.net.tls.server_tls import LOOK_S, RETRY_S, ServerTls, server_tls, signature
from paddler_trio.system.settings.balancer_config import BalancerConfig

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pairs(authority: Authority) -> tuple[Pair, Pair]:
    return authority.sign("first"), authority.sign("second")


@pytest.fixture
def files(pairs: tuple[Pair, Pair], tmp_path: Path) -> TlsFiles:
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    install(pairs[0], files)
    return files


def install(pair: Pair, files: TlsFiles) -> None:
    """As a renewal does: each file is replaced in one step."""
    for source, target in ((pair.key, files.key), (pair.cert, files.cert)):
        fresh = target.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.rename(target)


async def test_another_pair_is_in_use_after_a_reload(
    files: TlsFiles, pairs: tuple[Pair, Pair]
) -> None:
    tls = ServerTls.read(files)
    before, context = tls.fingerprint, tls.context
    install(pairs[1], files)
    await tls.reload()
    assert tls.fingerprint != before
    assert tls.context is not context
    assert (tls.reloads, tls.failed_reloads) == (1, 0)
    assert tls.ca_hash == tls.fingerprint, "it stands alone in its file"


@pytest.mark.parametrize("damage", ["half", "mismatch", "missing"])
async def test_files_that_cannot_be_used_change_nothing(
    files: TlsFiles, pairs: tuple[Pair, Pair], damage: str
) -> None:
    tls = ServerTls.read(files)
    before, context = tls.fingerprint, tls.context
    if damage == "half":
        files.cert.write_bytes(files.cert.read_bytes()[:200])
    elif damage == "mismatch":
        shutil.copy(pairs[1].key, files.key)
    else:
        files.key.unlink()
    with structlog.testing.capture_logs() as records:
        await tls.reload()
    assert tls.context is context
    assert (tls.fingerprint, tls.failed_reloads) == (before, 1)
    (record,) = records
    assert (record["log_level"], record["event"]) == (
        "error",
        "certificate not read again, the old one stays",
    )
    assert str(files.cert) in record["reason"] or str(files.key) in record["reason"]


async def test_a_change_is_noticed_and_read_once(
    files: TlsFiles,
    pairs: tuple[Pair, Pair],
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tls = ServerTls.read(files)
    nursery.start_soon(tls.run)
    await trio.sleep(10 * LOOK_S)
    assert tls.reloads == 0
    install(pairs[1], files)
    await waiting_until(lambda: tls.reloads == 1)
    await trio.sleep(10 * LOOK_S)
    assert tls.reloads == 1


async def test_a_pair_replaced_one_after_the_other_is_no_error(
    files: TlsFiles,
    pairs: tuple[Pair, Pair],
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tls = ServerTls.read(files)
    nursery.start_soon(tls.run)
    await trio.sleep(LOOK_S * 1.2)
    shutil.copy(pairs[1].key, files.key)
    await trio.sleep(LOOK_S)  # it was looked at in between
    shutil.copy(pairs[1].cert, files.cert)
    await waiting_until(lambda: tls.reloads == 1)
    assert tls.failed_reloads == 0


async def test_bad_files_are_reported_once_and_good_ones_read_later(
    files: TlsFiles,
    pairs: tuple[Pair, Pair],
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tls = ServerTls.read(files)
    nursery.start_soon(tls.run)
    files.cert.write_text("nothing")
    await waiting_until(lambda: tls.failed_reloads == 1)
    await trio.sleep(20 * LOOK_S)
    assert (tls.reloads, tls.failed_reloads) == (0, 1)
    install(pairs[1], files)
    await waiting_until(lambda: tls.reloads == 1)


async def test_what_was_wrong_need_not_have_been_in_the_files(
    files: TlsFiles,
    pairs: tuple[Pair, Pair],
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A certificate that is not valid yet, say: it is taken once it is, and reported once."""
    tls = ServerTls.read(files)
    nursery.start_soon(tls.run)
    is_early = True

    def read(files: TlsFiles) -> ServerCertificate:
        if is_early:
            raise ConfigurationError("it is valid from tomorrow on")
        return read_server_certificate(files)

    monkeypatch.setattr("paddler_trio.net.tls.server_tls.read_server_certificate", read)
    with structlog.testing.capture_logs() as records:
        install(pairs[1], files)
        await waiting_until(lambda: tls.failed_reloads == 3)
        is_early = False
        await waiting_until(lambda: tls.reloads == 1)
        await trio.sleep(3 * RETRY_S)
    assert [record["log_level"] for record in records] == ["error", "info"]
    assert (tls.reloads, tls.failed_reloads) == (1, 3)


def test_other_rights_are_a_change(files: TlsFiles) -> None:
    """Whoever renews may make the files readable some time later."""
    before = signature(files.paths)
    files.key.chmod(0o640)
    assert signature(files.paths) != before


async def test_the_end_of_the_certificate_is_announced(
    files: TlsFiles, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    tls = ServerTls.read(files)
    now_s = tls.not_after_s - 4 * DAY_S
    tls.now_s = lambda: now_s
    assert tls.expires_in_s == 4 * DAY_S
    with structlog.testing.capture_logs() as records:
        nursery.start_soon(tls.run)
        for left_days in (4, 0.5, -1):
            now_s = tls.not_after_s - left_days * DAY_S
            known = len(records)
            await waiting_until(lambda known=known: len(records) > known)  # type: ignore[misc]
            await trio.sleep(5 * LOOK_S)  # and no more of it
    assert [record["log_level"] for record in records] == ["warning", "warning", "error"]
    assert [record["days"] for record in records[:2]] == [4.0, 0.5]
    assert "HAS EXPIRED" in records[-1]["event"]


async def waiting_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # virtual time
        await trio.sleep(LOOK_S / 5)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_key_that_others_can_read_is_warned_about(
    files: TlsFiles, mode: int, warned: bool
) -> None:
    files.key.chmod(mode)
    with structlog.testing.capture_logs() as records:
        ServerTls.read(files)
    modes = [record["mode"] for record in records if "mode" in record]
    assert modes == ([f"0{mode:o}"] if warned else [])


def test_the_flags_of_a_balancer(files: TlsFiles) -> None:
    assert server_tls(BalancerConfig()) is None
    tls = server_tls(BalancerConfig(tls_cert=files.cert, tls_key=files.key))
    assert tls is not None
    assert repr(tls).startswith(f"<ServerTls {tls.fingerprint[:12]} until ")
