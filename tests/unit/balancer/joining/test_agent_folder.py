"""What a machine keeps that has joined, and which balancer an agent dials because of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import typer

from paddler_trio.agent.link.agent_folder import (
    AgentFolder,
    Joined,
    age_s,
    default_folder,
    in_use,
    replace_secret,
)
from paddler_trio.cli.access.agent_membership import Membership, membership
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import new_secret

HERE = "https://balancer.example.org:8060"


@pytest.fixture
def folder(tmp_path: Path) -> AgentFolder:
    """Of a machine that has joined as gpu-1."""
    found = AgentFolder(tmp_path / "state")
    found.make()
    found.keep(Joined(HERE, "gpu-1"), AgentCredential("0" * 12, "s" * 43), has_new_ca=False)
    return found


def member(folder: AgentFolder, **given: object) -> Membership:
    fields: dict[str, object] = {
        "management_addr": None,
        "name": None,
        "token_file": None,
        "credential_file": None,
        "state_dir": folder.path,
    }
    return membership(**{**fields, **given})  # type: ignore[arg-type]


def test_what_was_kept_is_read_back_by_its_owner_alone(folder: AgentFolder) -> None:
    assert folder.joined() == Joined(HERE, "gpu-1")
    assert folder.credential.read_text() == f"pta1.{'0' * 12}.{'s' * 43}\n"
    modes = {each.stat().st_mode & 0o777 for each in folder.path.iterdir()}
    assert modes == {0o600}
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_machine_that_has_not_joined_has_joined_nothing(tmp_path: Path) -> None:
    folder = AgentFolder(tmp_path / "none")
    assert folder.joined() is None
    assert member(folder) == Membership(None, None)


def test_a_file_that_is_given_as_the_folder_is_refused_by_the_options_name(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.touch()
    with pytest.raises(typer.BadParameter, match="state is no folder") as raised:
        member(AgentFolder(file))
    assert raised.value.param_hint == "--state-dir"


def test_half_of_joining_is_none(folder: AgentFolder) -> None:
    folder.credential.unlink()
    assert folder.joined() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', "{" * 5000])
def test_a_broken_file_is_named(folder: AgentFolder, text: str) -> None:
    (folder.path / "joined.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"joined\.json .* --replace"):
        folder.joined()


def test_a_pending_secret_is_for_its_token_alone(folder: AgentFolder) -> None:
    secret = new_secret()
    folder.keep_pending("a" * 12, secret)
    assert folder.pending_secret("a" * 12) == secret
    assert folder.pending_secret("b" * 12) is None
    (folder.path / "joining.json").write_text("broken")
    assert folder.pending_secret("a" * 12) is None
    folder.forget_pending()
    assert folder.pending_secret("a" * 12) is None


def test_the_secret_is_replaced_and_young_again(folder: AgentFolder) -> None:
    os.utime(folder.credential, (time.time() - 1000, time.time() - 1000))
    assert 999 < age_s(folder.credential) < 1100
    replace_secret(folder.credential, "t" * 43)
    assert folder.credential.read_text() == f"pta1.{'0' * 12}.{'t' * 43}\n"
    assert age_s(folder.credential) < 100
    folder.credential.write_text("something else")
    with pytest.raises(ConfigurationError, match="no agent's credential"):
        replace_secret(folder.credential, "u" * 43)


def test_one_agent_uses_a_credential(folder: AgentFolder) -> None:
    refused = pytest.raises(ConfigurationError, match=rf"process {os.getpid()}.*--state-dir")
    with in_use(folder.credential), refused, in_use(folder.credential):
        pass
    with in_use(folder.credential):
        pass


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "HOME": "/h"}, "/var/lib/a"),
        ({"XDG_STATE_HOME": "/state", "HOME": "/h"}, "/state/paddler-trio"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/paddler-trio"),
        ({"HOME": "/h"}, "/h/.local/state/paddler-trio"),
    ],
)
def test_where_it_is(environment: dict[str, str], expected: str) -> None:
    assert default_folder(environment) == Path(expected)


# ------------------------------------------------------------------------------- membership


def test_an_agent_that_has_joined_needs_no_options(folder: AgentFolder) -> None:
    found = member(folder)
    assert (found.address, found.name) == (HERE, "gpu-1")
    assert (found.token_file, found.has_credential) == (folder.credential, True)
    same = member(folder, management_addr="balancer.example.org:8060", name="gpu-1")
    assert same == found


def test_a_credential_is_shown_to_its_own_balancer_alone(folder: AgentFolder) -> None:
    found = member(folder, management_addr="other.example.org:8060")
    assert (found.token_file, found.has_credential) == (None, False)
    assert HERE in (found.ignored or "")
    meant = member(
        folder, management_addr="other.example.org:8060", credential_file=folder.credential
    )
    assert (meant.address, meant.token_file) == ("other.example.org:8060", folder.credential)


def test_an_api_key_goes_first(folder: AgentFolder, tmp_path: Path) -> None:
    found = member(folder, management_addr="a:1", token_file=tmp_path / "key")
    assert found == Membership("a:1", None, tmp_path / "key")
    with pytest.raises(typer.BadParameter, match="not both"):
        member(folder, token_file=tmp_path / "key", credential_file=folder.credential)


def test_another_name_is_a_usage_error(folder: AgentFolder) -> None:
    with pytest.raises(typer.BadParameter, match="joined as 'gpu-1'"):
        member(folder, name="gpu-2")


def test_a_credential_that_lies_alone_needs_an_address(tmp_path: Path) -> None:
    file = tmp_path / "credential.txt"
    with pytest.raises(ConfigurationError, match="paddler-trio join"):
        member(AgentFolder(tmp_path), credential_file=file)
    file.write_text("pta1.x\n")
    found = member(AgentFolder(tmp_path), credential_file=file, management_addr="a:1")
    assert (found.address, found.token_file, found.has_credential) == ("a:1", file, True)
