"""The environment means what it means to huggingface_hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddler_trio.errors import ConfigurationError
from paddler_trio.models.hub.hub_settings import HubSettings

THEIRS = (
    "from huggingface_hub import constants as c;"
    "print(c.ENDPOINT, c.HF_HUB_CACHE, c.HF_TOKEN_PATH, c.HF_HUB_OFFLINE, sep='\\n')"
)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "/hf", "HF_HUB_CACHE": "$HOME/cache"},
        {"XDG_CACHE_HOME": "/xdg"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HF_TOKEN_PATH": "~/token"},
        {"HF_ENDPOINT": "https://mirror/", "HF_HUB_OFFLINE": "yes"},
        {"TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": ""},
    ],
)
def test_the_variables_mean_what_they_mean_to_huggingface_hub(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {"HOME": str(tmp_path), **environment}
    ours = HubSettings.from_environment(environment)
    theirs = subprocess.run(
        [sys.executable, "-c", THEIRS],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [ours.endpoint, str(ours.cache), str(ours.token_path), str(ours.offline)] == theirs


def test_a_token_comes_from_the_file_asked_for_then_the_environment_then_the_login(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("hf_login\n")
    (tmp_path / "asked").write_text("hf_asked")
    environment = {"HF_HOME": str(tmp_path), "HF_TOKEN": " hf_env\n"}
    file = tmp_path / "asked"
    assert HubSettings.from_environment(environment, token_file=file).token() == "hf_asked"
    assert HubSettings.from_environment(environment).token() == "hf_env"
    del environment["HF_TOKEN"]
    assert HubSettings.from_environment(environment).token() == "hf_login"
    environment["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
    assert HubSettings.from_environment(environment).token() is None


def test_a_token_that_is_none_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        HubSettings.from_environment({}, token_file=tmp_path / "none").token()
    (tmp_path / "token").write_text("two words")
    settings = HubSettings.from_environment({"HF_TOKEN_PATH": str(tmp_path / "token")})
    with pytest.raises(ConfigurationError, match="must hold one token") as caught:
        settings.token()
    assert "two words" not in str(caught.value)


def test_the_fingerprint_changes_with_the_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = HubSettings.from_environment({"HF_TOKEN_PATH": str(path)})
    prints = [settings.token_fingerprint()]
    for text in ("hf_a", "hf_b"):
        path.write_text(text)
        prints.append(settings.token_fingerprint())
    assert len(set(prints)) == 3
    assert all("hf_" not in text for text in prints)


@pytest.mark.parametrize("endpoint", ["ftp://host", "host", "https://", "https://a b"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="HF_ENDPOINT"):
        HubSettings.from_environment({"HF_ENDPOINT": endpoint})
