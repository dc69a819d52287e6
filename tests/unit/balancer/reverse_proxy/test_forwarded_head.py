"""What of a head is about one connection ends here, and the rest passes as it came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.reverse_proxy.answer_writer import field_text
from paddler_trio.balancer.reverse_proxy.forwarded_head import (
    CONNECTION_FIELDS,
    Framing,
    answer_head,
    request_headers,
)
from paddler_trio.errors import WireError
from paddler_trio.wire.trio.tunnel_frames import Headers, ResponseHead

TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(str.encode)
VALUES = st.text("abcdefghijklmnopqrstuvwxyz 0123456789;=/", max_size=12).map(str.encode)
FIELDS = st.lists(st.tuples(TOKENS, VALUES), max_size=8)


def sent(headers: list[tuple[bytes, bytes]], **options: object) -> Headers:
    given_options: dict[str, object] = {
        "client": "10.0.0.9",
        "scheme": "http",
        "body_bytes": None,
        "keeps_keys": True,
    }
    names = [name for name, _ in headers]
    return request_headers(headers, names, **(given_options | options))  # type: ignore[arg-type]


def answered(headers: Headers, **options: object) -> tuple[bytes, Framing]:
    given_options: dict[str, object] = {"method": b"GET", "is_http_1_1": True, "must_close": False}
    status = options.pop("status", 200)
    head = ResponseHead(
        status=status,  # type: ignore[arg-type]
        reason=b"Fine",
        headers=headers,
        is_sized=bool(options.pop("is_sized", False)),
    )
    written = answer_head(head, **(given_options | options))  # type: ignore[arg-type]
    return written.data, written.framing


@given(FIELDS, st.lists(TOKENS, max_size=3))
def test_a_server_gets_no_field_about_the_clients_connection_and_all_others_in_order(
    fields: list[tuple[bytes, bytes]], named: list[bytes]
) -> None:
    headers = [*fields, (b"connection", b", ".join(named))]
    passed = sent(headers)
    assert not {name for name, _ in passed} & (CONNECTION_FIELDS | set(named)) - {
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
    }
    kept = [
        pair
        for pair in fields
        if pair[0] not in CONNECTION_FIELDS | set(named) | {b"expect", b"content-length"}
        and not pair[0].startswith(b"x-")
    ]
    assert [pair for pair in passed if pair in kept] == kept


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], b"10.0.0.9"),
        ([b"1.2.3.4"], b"1.2.3.4, 10.0.0.9"),
        ([b"1.2.3.4", b"5.6.7.8"], b"1.2.3.4, 5.6.7.8, 10.0.0.9"),
        ([b"1" * 2000], b"10.0.0.9"),
    ],
)
def test_the_clients_address_is_added_to_those_that_are_noted(
    before: list[bytes], after: bytes
) -> None:
    passed = sent([(b"x-forwarded-for", each) for each in before])
    assert [value for name, value in passed if name == b"x-forwarded-for"] == [after]


def test_what_a_proxy_before_noted_of_host_and_scheme_is_kept() -> None:
    noted = [(b"x-forwarded-host", b"api.example"), (b"x-forwarded-proto", b"https")]
    passed = sent([(b"host", b"127.0.0.1"), *noted])
    assert [pair for pair in passed if pair[0].startswith(b"x-forwarded-")] == [
        *noted,
        (b"x-forwarded-for", b"10.0.0.9"),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("rack-1", b"rack-1"), ("a\r\nSet-Cookie: x", b"a??Set-Cookie: x"), ("\u6771", b"?")],
)
def test_the_name_of_an_agent_is_one_line(name: str, value: bytes) -> None:
    assert field_text(name) == value


@pytest.mark.parametrize("status", [200, 101])
def test_a_server_does_not_say_that_another_one_answered(status: int) -> None:
    headers = ((b"Upgrade", b"websocket"), (b"X-Paddler-Agent", b"another"))
    extra = ((b"x-paddler-agent", b"this"),)
    data, _ = answered(headers, status=status, upgrades=status == 101, extra=extra)
    assert [line for line in data.lower().split(b"\r\n") if b"agent" in line] == [
        b"x-paddler-agent: this"
    ]


def test_keys_for_the_balancer_are_not_shown_to_servers() -> None:
    keys = [(b"authorization", b"Bearer x"), (b"x-api-key", b"x")]
    assert not {b"authorization", b"x-api-key"} & dict(sent(keys, keeps_keys=False)).keys()
    assert {b"authorization", b"x-api-key"} <= dict(sent(keys)).keys()


@pytest.mark.parametrize(
    ("cookies", "passed"),
    [
        (b"a=1;paddler_panel_8060=token; b=2", b"a=1; b=2"),
        (b"paddler_panel=token", None),
        (b"a=1;b=paddler_panel", b"a=1; b=paddler_panel"),
        (b"a=1;b=2", b"a=1;b=2"),
    ],
)
def test_sessions_of_the_panel_are_not_shown_to_servers(
    cookies: bytes, passed: bytes | None
) -> None:
    assert dict(sent([(b"cookie", cookies)])).get(b"cookie") == passed


def test_a_body_is_announced_by_its_length_however_it_came() -> None:
    for came in ((b"content-length", b"5"), (b"transfer-encoding", b"chunked")):
        passed = sent([came], body_bytes=5)
        assert [pair for pair in passed if not pair[0].startswith(b"x-")] == [
            (b"content-length", b"5")
        ]
    assert not {b"content-length", b"transfer-encoding"} & dict(sent([])).keys()


def test_the_words_and_the_case_of_a_server_are_kept() -> None:
    data, framing = answered(((b"Server", b"llama.cpp"), (b"X-Odd", b"1")), is_sized=False)
    assert data == (
        b"HTTP/1.1 200 Fine\r\nServer: llama.cpp\r\nX-Odd: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert framing is Framing.CHUNKS


@pytest.mark.parametrize(
    ("options", "framing", "fields"),
    [
        ({"is_sized": True}, Framing.LENGTH, b"Content-Length: 3\r\n"),
        ({"is_sized": True, "method": b"HEAD"}, Framing.NONE, b"Content-Length: 3\r\n"),
        ({"is_sized": True, "status": 304}, Framing.NONE, b"Content-Length: 3\r\n"),
        ({"is_http_1_1": False}, Framing.CLOSE, b"Connection: close\r\n"),
        (
            {"is_sized": True, "must_close": True},
            Framing.LENGTH,
            b"Content-Length: 3\r\nConnection: close\r\n",
        ),
    ],
)
def test_a_client_is_told_where_the_body_ends(
    options: dict[str, object], framing: Framing, fields: bytes
) -> None:
    headers = (
        (b"Content-Length", b"3"),
        (b"Connection", b"Keep-Alive, X-Gone"),
        (b"Keep-Alive", b"timeout=5"),
        (b"X-Gone", b"1"),
    )
    data, found = answered(headers, **options)
    assert found is framing
    assert data.partition(b"\r\n")[2] == fields + b"\r\n"


@pytest.mark.parametrize(
    "lengths", [[], [b""], [b"-1"], [b"0x3"], [b"3", b"4"], [b"3, 4"], [b"9" * 19]]
)
def test_a_head_that_does_not_say_which_length_it_has_is_refused(lengths: list[bytes]) -> None:
    headers = tuple((b"Content-Length", each) for each in lengths)
    with pytest.raises(WireError, match="not one Content-Length"):
        answered(headers, is_sized=True)


@pytest.mark.parametrize("lengths", [[b"3"], [b"3", b"3"], [b"3, 3"], [b"3", b"03"]])
def test_a_length_reaches_the_client_whatever_the_servers_connection_names(
    lengths: list[bytes],
) -> None:
    headers = tuple((b"Content-Length", each) for each in lengths)
    data, framing = answered((*headers, (b"Connection", b"content-length")), is_sized=True)
    assert framing is Framing.LENGTH
    assert data.partition(b"\r\n")[2] == b"Content-Length: 3\r\n\r\n", "once, RFC 9110, 8.6"
