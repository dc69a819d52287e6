"""What lies under the panel's base, how its files are sent, and who reaches the APIs behind it."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from panel_world import PAGE, Answer, AuditDouble, ask, assets_in, echo, expiring, site_of, written
from structlog.testing import capture_logs

from exchanges import exchange_for
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.login_limit import BURST
from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    read_key_file,
    write_key_file,
)
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.panel.panel_assets import PanelAssets, has_tag, takes_gzip
from paddler_trio.balancer.panel.panel_site import below
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import App, Exchange

GZIP = (b"accept-encoding", b"br, gzip;q=0.8")
EVIL = (b"origin", b"http://evil.example")
OURS = (b"origin", b"http://panel.local:8062")
MANAGER, USER = KeyScope.MANAGEMENT, KeyScope.INFERENCE


@pytest.fixture
def assets(tmp_path: Path) -> PanelAssets:
    return assets_in(tmp_path / "built")


@pytest.fixture
def open_site(assets: PanelAssets) -> App:
    return site_of(KeyRing(), assets)[0].at("/panel/")


async def sign_in(app: App, secret: str, **options: object) -> Answer:
    return await ask(app, "/session", "POST", body={"key": secret}, **options)  # type: ignore[arg-type]


def cookie_of(answer: Answer) -> tuple[bytes, bytes]:
    return b"cookie", answer.cookie.encode()


def csrf_of(answer: Answer) -> tuple[bytes, bytes]:
    return b"x-csrf-token", str(answer.json["csrf"]).encode()


# -------------------------------------------------------------------------------------- files


async def test_the_page_is_asked_for_anew_and_its_files_never(open_site: App) -> None:
    page = await ask(open_site, "/panel/")
    assert (page.status, page.body.decode()) == (200, PAGE)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    again = await ask(
        open_site, "/panel/", "GET", (b"if-none-match", page.headers["etag"].encode())
    )
    assert (again.status, again.body) == (304, b"")
    for name, kind in (("main-1A2B3C4D.js", "text/javascript"), ("dot-3c4d5e6f.png", "image/png")):
        file = await ask(open_site, f"/panel/assets/{name}")
        assert file.status == 200
        assert file.headers["content-type"].startswith(kind)
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert file.headers["x-content-type-options"] == "nosniff"
    unnamed = await ask(open_site, "/panel/assets/licences.txt")
    assert (unnamed.status, unnamed.headers["cache-control"]) == (200, "no-cache")
    for name in ("index.html", "main-1A2B3C4D.js.gz", "../panel_site.py", "x.js"):
        assert (await ask(open_site, f"/panel/assets/{name}")).status == 404


async def test_files_are_compressed_once_for_clients_that_take_it(open_site: App) -> None:
    plain = await ask(open_site, "/panel/assets/main-1A2B3C4D.js")
    packed = await ask(open_site, "/panel/assets/main-1A2B3C4D.js", "GET", GZIP)
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) == int(packed.headers["content-length"]) < len(plain.body)
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert packed.headers["etag"] != plain.headers["etag"]
    image = await ask(open_site, "/panel/assets/dot-3c4d5e6f.png", "GET", GZIP)
    assert "content-encoding" not in image.headers


async def test_head_is_get_without_its_body(open_site: App) -> None:
    for path in ("/panel/", "/panel/assets/main-1A2B3C4D.js"):
        head, get = await ask(open_site, path, "HEAD"), await ask(open_site, path)
        assert head.body == b""
        assert head.headers == get.headers


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        (None, False),
        (b"", False),
        (b"gzip", True),
        (b"deflate, GZIP ; q=1", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.0", False),
        (b"identity, br", False),
    ],
)
def test_who_takes_gzip(accepted: bytes | None, *, takes: bool) -> None:
    assert takes_gzip(accepted) is takes


def test_a_tag_is_known_among_others_and_weak() -> None:
    assert has_tag(b'"a", W/"b"', b'"b"')
    assert has_tag(b"*", b'"b"')
    assert not has_tag(b'"a"', b'"b"')
    assert not has_tag(None, b'"b"')


async def test_what_was_not_built_is_said(tmp_path: Path) -> None:
    app = site_of(KeyRing(), PanelAssets.read(tmp_path))[0].at("/")
    page = await ask(app, "/")
    assert page.status == 503
    assert b"make panel" in page.body


def test_files_of_unknown_types_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "main.js.map").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"main\.js\.map"):
        PanelAssets.read(tmp_path)


# -------------------------------------------------------------------------------------- paths


async def test_the_base_without_its_slash_redirects_relatively(open_site: App) -> None:
    moved = await ask(open_site, "/panel")
    assert (moved.status, moved.headers["location"]) == (307, "panel/")


async def test_paths_behind_the_base_are_those_of_the_ports(open_site: App) -> None:
    for base, path in (
        ("/panel/api/v2/agents", "/api/v2/agents"),
        ("/panel/inference/v1/models", "/v1/models"),
        ("/panel/inference/api/v2/generate", "/api/v2/generate"),
    ):
        said = (await ask(open_site, base)).json
        assert (said["path"], said["raw_path"], said["client"]) == (path, path, "")


@pytest.mark.parametrize(
    "path", ["/panel/api/v1/agent_socket/evil", "/panel/api/v2/store", "/panel/x", "/panel//api/"]
)
async def test_agents_and_the_store_are_not_reached_through_the_panel(
    open_site: App, path: str
) -> None:
    assert (await ask(open_site, path)).status == 404
    assert (await ask(open_site, path, kind="websocket")).status == 403


async def test_inference_has_websockets_and_nothing_else_has(open_site: App) -> None:
    assert (await ask(open_site, "/panel/inference/api/v1/s", kind="websocket")).status == 101
    for path in ("/panel/api/v1/x", "/panel/", "/panel/session", "/panel/assets/main-1A2B3C4D.js"):
        assert (await ask(open_site, path, kind="websocket")).status == 403


async def test_files_are_read_only(open_site: App) -> None:
    for path in ("/panel/", "/panel/assets/main-1A2B3C4D.js", "/panel"):
        refused = await ask(open_site, path, "POST")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_only_paths_of_the_base_come_to_the_site(open_site: App) -> None:
    app = below("/panel/", open_site, otherwise=echo)
    assert (await ask(app, "/panels")).json["path"] == "/panels"
    assert (await ask(app, "/panel")).status == 307
    assert (await ask(app, "/panel/")).body.decode() == PAGE


# ------------------------------------------------------------------------------------ sessions


async def test_without_keys_nobody_signs_in(assets: PanelAssets) -> None:
    app = site_of(KeyRing(), assets)[0].at("/")
    assert (await ask(app, "/session")).json == {
        "required": False,
        "signed_in": False,
        "name": None,
        "csrf": None,
    }
    refused = await sign_in(app, "pt-anything")
    assert refused.status == 401
    assert b"no keys" in refused.body
    assert (await ask(app, "/api/v2/agents/a/drain", "POST")).status == 200


async def test_a_session_is_its_key_and_uses_inference_under_its_name(
    tmp_path: Path, assets: PanelAssets
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, app=USER)
    app = site_of(ring, assets)[0].at("/")
    assert (await ask(app, "/session")).json["required"] is True
    assert (await ask(app, "/")).status == 200  # the page is where people sign in
    for path in ("/api/v2/agents", "/inference/v1/models"):
        assert (await ask(app, path)).status == 401
    session = await sign_in(app, secrets["ops"])
    assert session.status == 200
    assert session.json["name"] == "ops"
    flags = session.headers["set-cookie"].split("; ")
    assert flags[1:] == ["HttpOnly", "SameSite=Strict", "Max-Age=43200"]
    assert flags[0].startswith("paddler_panel_8062=")
    cookie = cookie_of(session)
    assert (await ask(app, "/session", "GET", cookie)).json == session.json
    assert (await ask(app, "/api/v2/agents", "GET", cookie)).json["client"] == "ops"
    assert (await ask(app, "/inference/v1/x", "GET", cookie)).json["client"] == "panel:ops"
    assert ring.requests["ops"] == 2


async def test_inference_of_a_session_counts_for_the_limits_of_its_key(
    tmp_path: Path, assets: PanelAssets
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, app=USER)
    app = site_of(ring, assets)[0].at("/")
    cookie = cookie_of(await sign_in(app, secrets["ops"]))
    assert (await ask(app, "/inference/v1/x", "GET", cookie)).json["account"] == "ops"
    key = (b"x-api-key", secrets["app"].encode())
    assert (await ask(app, "/inference/v1/x", "GET", key)).json["account"] == "app"


async def test_an_expired_key_signs_nobody_in_and_ends_its_sessions(
    tmp_path: Path, assets: PanelAssets
) -> None:
    end = datetime(2026, 6, 1, tzinfo=UTC)
    ring, secret = expiring(tmp_path, "ops", end)
    now = end - timedelta(hours=1)
    ring.now = lambda: now
    app = site_of(ring, assets)[0].at("/")
    session = await sign_in(app, secret)
    assert session.status == 200
    now = end
    refused = await sign_in(app, secret)
    assert refused.status == 401
    assert b"'ops' expired at 2026-06-01T00:00:00Z" in refused.body
    assert (await ask(app, "/api/v2/x", "GET", (b"x-api-key", secret.encode()))).status == 401


async def test_who_signs_in_and_out_is_recorded_and_who_only_knocks_is_not(
    tmp_path: Path, assets: PanelAssets
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, app=USER)
    trail = AuditDouble()
    app = site_of(ring, assets, trail)[0].at("/")
    session = await sign_in(app, secrets["ops"])
    await sign_in(app, secrets["app"])
    await sign_in(app, "pt-wrong")
    await ask(app, "/session", "POST", body={})
    await ask(app, "/session", "DELETE")
    await ask(app, "/session", "DELETE", cookie_of(session), csrf_of(session))
    assert trail.records == [
        ("sign-in", "ops", "done"),
        ("sign-in", "app", "refused: 401"),
        ("sign-in", "", "refused: 401"),
        ("sign-out", "ops", "done"),
    ]


async def test_the_cookie_is_secure_under_tls(tmp_path: Path, assets: PanelAssets) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER)
    app = site_of(ring, assets)[0].at("/")
    body = {"key": secrets["ops"]}
    proto = (b"x-forwarded-proto", b"https")
    for answer in (
        await ask(app, "/session", "POST", proto, body=body),
        await ask(app, "/session", "POST", body=body, scheme="https"),
    ):
        assert answer.headers["set-cookie"].endswith("; Secure")


async def test_changes_of_a_session_need_its_token_and_its_sockets_an_origin(
    tmp_path: Path, assets: PanelAssets
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, app=USER)
    app = site_of(ring, assets)[0].at("/")
    session, other = await sign_in(app, secrets["ops"]), await sign_in(app, secrets["ops"])
    cookie = cookie_of(session)
    for path in ("/api/v2/agents/a/drain", "/inference/v1/chat/completions"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for headers in ([], [csrf_of(other)], [(b"x-csrf-token", b"\xff")]):
                refused = await ask(app, path, method, cookie, *headers)
                assert refused.status == 403
                assert b"X-CSRF-Token" in refused.body
            assert (await ask(app, path, method, cookie, csrf_of(session))).status == 200
            assert (await ask(app, path, method, cookie, csrf_of(session), EVIL)).status == 403
    assert (await ask(app, "/session", "DELETE", cookie)).status == 403
    socket = "/inference/api/v1/inference_socket"
    assert (await ask(app, socket, "GET", cookie, kind="websocket")).status == 403
    assert (await ask(app, socket, "GET", cookie, EVIL, kind="websocket")).status == 403
    assert (await ask(app, socket, "GET", cookie, OURS, kind="websocket")).status == 101


async def test_a_key_in_a_header_counts_as_everywhere(tmp_path: Path, assets: PanelAssets) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, app=USER)
    app = site_of(ring, assets)[0].at("/")
    ops = (b"authorization", f"Bearer {secrets['ops']}".encode())
    use = (b"x-api-key", secrets["app"].encode())
    assert (await ask(app, "/api/v2/x", "POST", ops)).json["client"] == "ops"
    assert (await ask(app, "/inference/v1/x", "POST", use)).json["client"] == "app"
    assert (await ask(app, "/api/v2/x", "GET", use)).status == 403
    refused = await ask(app, "/inference/v1/x", "GET", ops)
    assert (refused.status, refused.body[:9]) == (403, b"envelope:")
    cookie = cookie_of(await sign_in(app, secrets["ops"]))
    assert (await ask(app, "/api/v2/x", "GET", cookie, use)).status == 403  # the key is asked first


async def test_signing_out_ends_the_session_and_the_cookie(
    tmp_path: Path, assets: PanelAssets
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER)
    app = site_of(ring, assets)[0].at("/")
    session = await sign_in(app, secrets["ops"])
    left = await ask(app, "/session", "DELETE", cookie_of(session), csrf_of(session))
    assert left.status == 204
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert (await ask(app, "/api/v2/x", "GET", cookie_of(session))).status == 401
    assert (await ask(app, "/session", "DELETE", cookie_of(session))).status == 204


async def test_a_revoked_key_ends_its_sessions(tmp_path: Path, assets: PanelAssets) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, night=MANAGER)
    site, access = site_of(ring, assets)
    app = site.at("/")
    ops, night = await sign_in(app, secrets["ops"]), await sign_in(app, secrets["night"])
    assert ring.path is not None
    write_key_file(ring.path, read_key_file(ring.path).without("ops"))
    await ring.reload()
    assert (await ask(app, "/api/v2/x", "GET", cookie_of(ops))).status == 401
    assert (await ask(app, "/api/v2/x", "GET", cookie_of(night))).status == 200
    again = StoredKey.of("pt-new", name="night", scopes=frozenset({MANAGER}), created="")
    write_key_file(ring.path, KeyFile().having(again))
    await ring.reload()  # of the same name, and yet another key
    assert len(access.sessions) == 0


@pytest.mark.parametrize(
    ("content_type", "is_ended"), [(b"text/event-stream", True), (b"application/json", False)]
)
async def test_what_a_session_reads_ends_with_it(
    tmp_path: Path, assets: PanelAssets, content_type: bytes, *, is_ended: bool
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER)
    site, access = site_of(ring, assets)
    cookie = cookie_of(await sign_in(site.at("/"), secrets["ops"]))
    said: list[Message] = []
    began = trio.Event()

    async def endless(exchange: Exchange) -> None:
        headers = [(b"content-type", content_type)]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        began.set()
        await trio.sleep_forever()

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return await trio.sleep_forever()

    app = access(endless, otherwise=Authentication(ring, MANAGER))
    host = (b"host", b"panel.local:8062")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [host, cookie]}
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app, exchange_for(scope, receive, send))
            await began.wait()
            access.sessions.end_all(lambda key: key.name == "ops")
    assert [message["type"] for message in said[1:]] == ["http.response.body"] * is_ended


async def test_that_a_session_has_ended_is_said_past_what_stands_behind_it(
    tmp_path: Path, assets: PanelAssets
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER)
    site, access = site_of(ring, assets)
    cookie = cookie_of(await sign_in(site.at("/"), secrets["ops"]))
    said: list[Message] = []
    inner: list[Message] = []
    began = trio.Event()

    async def silent(exchange: Exchange) -> None:
        async def send_inside(message: Message) -> None:
            inner.append(message)

        exchange.send = send_inside
        began.set()
        await trio.sleep_forever()

    async def send(message: Message) -> None:
        said.append(message)

    app = access(silent, otherwise=Authentication(ring, MANAGER))
    scope = {"headers": [(b"host", b"panel.local:8062"), cookie]}
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app, exchange_for(scope, send=send))
            await began.wait()
            access.sessions.end_all(lambda key: key.name == "ops")
    assert (said[0]["status"], inner) == (401, [])


async def test_failed_sign_ins_are_limited_by_address(tmp_path: Path, assets: PanelAssets) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER, app=USER)
    app = site_of(ring, assets)[0].at("/")
    wrong = await sign_in(app, secrets["app"])
    assert wrong.status == 401
    assert b"not for management" in wrong.body
    for _ in range(BURST - 1):
        refused = await sign_in(app, "pt-wrong")
        assert refused.status == 401
        assert b"pt-wrong" not in refused.body
    with capture_logs() as records:
        limited = await sign_in(app, "pt-wrong")
    assert (limited.status, records) == (429, [])
    assert int(limited.headers["retry-after"]) >= 1
    assert (await sign_in(app, "pt-wrong", client="10.0.0.10")).status == 401
    assert (await sign_in(app, secrets["ops"])).status == 200


@pytest.mark.parametrize(
    "body", [None, {}, {"key": ""}, {"key": 5}, {"key": "a", "b": 1}, [], {"key": "x" * 5000}]
)
async def test_what_is_no_sign_in_is_refused_without_counting(
    tmp_path: Path, assets: PanelAssets, body: object
) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER)
    app = site_of(ring, assets)[0].at("/")
    for _ in range(BURST + 1):
        assert (await ask(app, "/session", "POST", body=body)).status in (400, 413)
    assert (await sign_in(app, secrets["ops"])).status == 200


async def test_pages_of_other_origins_sign_nobody_in(tmp_path: Path, assets: PanelAssets) -> None:
    ring, secrets = written(tmp_path, ops=MANAGER)
    app = site_of(ring, assets)[0].at("/")
    refused = await ask(app, "/session", "POST", EVIL, body={"key": secrets["ops"]})
    assert refused.status == 403
    assert "set-cookie" not in refused.headers
