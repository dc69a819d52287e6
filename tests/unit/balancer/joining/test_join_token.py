"""The text of a join token: what is written is read back, and nothing else is a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import (
    MAX_TOKEN_CHARS,
    JoinToken,
    digest_of,
    matches,
    new_id,
    new_secret,
)

HEX = "0123456789abcdef"
URL_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
HOSTS = st.one_of(
    st.from_regex(r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){0,3}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)


@st.composite
def tokens(draw: st.DrawFn) -> JoinToken:
    has_tls = draw(st.booleans())
    address = f"{draw(HOSTS)}:{draw(st.integers(1, 65_535))}"
    certificate_hash = draw(st.none() | st.text(HEX, min_size=64, max_size=64))
    return JoinToken(
        draw(st.text(HEX, min_size=12, max_size=12)),
        draw(st.text(URL_SAFE, min_size=43, max_size=43)),
        certificate_hash if has_tls else None,
        f"https://{address}" if has_tls else address,
    )


def parsed(text: str) -> JoinToken | str:
    """The token, or the error's text."""
    try:
        return JoinToken.parse(text)
    except ConfigurationError as error:
        return str(error)


@given(tokens())
def test_what_is_rendered_is_read_back(token: JoinToken) -> None:
    text = token.render()
    assert JoinToken.parse(text) == token
    assert token.secret in text
    assert "secret" not in repr(token)
    assert text.isascii()
    assert not set(text) & set(" '\"$`\\\n!&;|<>(){}*?#~")  # it stands between quotes in a shell


@given(tokens(), st.data())
def test_a_token_that_was_cut_or_grew_is_none_or_another(
    token: JoinToken, data: st.DataObject
) -> None:
    text = token.render()
    cut = data.draw(st.integers(0, len(text) - 1))
    for wrong in (text[:cut], f" {text}", f"{text} ", f"{text}\n", f"{text}\0", text.upper()):
        read = parsed(wrong)
        if isinstance(read, str):
            assert token.secret not in read
        else:
            assert read.address != token.address  # cut in the middle of the port


@given(st.text(max_size=600))
def test_any_text_is_a_token_or_a_clear_error(text: str) -> None:
    read = parsed(text)
    assert read if isinstance(read, str) else read.render() == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no join token"),
        ("pt-abc", "no join token"),
        ("ptj2.a.b.-.h:1", "no join token"),
        (f"ptj1.{'0' * 12}.{'s' * 43}.-.balancer", "not an address"),
        (f"ptj1.{'0' * 12}.{'s' * 43}.-.balancer:0", "port 0"),
        (f"ptj1.{'0' * 12}.{'s' * 43}.{'a' * 64}.balancer:1", "https://"),
        (f"ptj1.{'0' * 12}.{'s' * 43}.{'a' * 63}.https://balancer:1", "64 hexadecimal"),
        (f"ptj1.{'0' * 12}.{'s' * 43}.-.https://user@balancer:1", "no name or address"),
        (f"ptj1.{'0' * 11}.{'s' * 43}.-.balancer:1", "id or secret"),
        ("ptj1." + "x" * MAX_TOKEN_CHARS, "at most"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        JoinToken.parse(text)


def test_a_secret_matches_its_own_digest_only() -> None:
    secret, other = new_secret(), new_secret()
    assert matches(secret, digest_of(secret))
    assert not matches(other, digest_of(secret))
    assert not matches(secret, None)
    assert not matches("\udc80", digest_of(secret))  # not encodable, and no exception


def test_a_credential_is_read_back_and_hides_its_secret() -> None:
    credential = AgentCredential(new_id(), new_secret())
    assert AgentCredential.parse(credential.render()) == credential
    assert credential.secret not in repr(credential)
    for text in ("", "pta1", f"{credential.render()} ", credential.render()[:-1], "pt-x"):
        assert AgentCredential.parse(text) is None
