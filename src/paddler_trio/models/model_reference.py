"""SOURCE: the text forms of a model source, and what they mean.

    none                                no model
    /models/m.gguf                      a file on the agent
    agent:/models/m.gguf                the same, as Paddler's panel writes it
    https://host/path/m.gguf            a download
    https://huggingface.co/org/repo/blob/main/m.gguf    a file of a repository, as its web page
    hf:org/repo/file@revision           a file of a repository; without a revision it is main
    hf:org/repo:Q4_K_M@revision         a repository: the file of this quantisation
    hf:org/repo                         a repository: the file that llama.cpp would choose
    store://sha256/HEX/NAME             what was pushed to the balancer's model store

A repository is resolved to a file and a commit before it is stored: see ``hub_choice``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

from paddler_trio.errors import PaddlerError
from paddler_trio.models.pushed.pushed_model import is_pushed, pushed_source
from paddler_trio.net.client.download_errors import NotAModelError, Subject
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

NONE: Final = "none"
HUGGING_FACE: Final = "hf:"
DEFAULT_REVISION: Final = "main"
PANEL_HOST: Final = "huggingface.co"


class UnknownSourceError(PaddlerError):
    """The text names no source; the message is the reason."""


@attrs.frozen
class HubRepository:
    """A repository of a hub, whose file is still to be chosen.

    Args:
      repo_id: ``org/repo``.
      quantisation: such as ``Q4_K_M``; None leaves the choice to the default order.
      revision: a branch, a tag or a commit.
    """

    repo_id: str
    quantisation: str | None
    revision: str


def reference_of(text: str) -> DesiredModel | HubRepository:
    """Return what ``text`` names; UnknownSourceError.

    A path is returned as it is: whether a relative one makes sense is the caller's question.
    """
    if text == NONE:
        return NoModel()
    if text.startswith(HUGGING_FACE):
        return _hub(text)
    scheme, colon, _ = text.partition(":")
    if scheme.lower() in {"http", "https"} and "://" in text:
        return _url(text)
    if colon and scheme.lower() == "agent":
        return _agent(text)
    if is_pushed(text):
        return _pushed(text)
    if "://" in text:
        raise UnknownSourceError(f"{text!r}: {text.partition('://')[0]} is no way to get files")
    if not text:
        raise UnknownSourceError("it is empty")
    return LocalToAgent(text)


def text_of(model: DesiredModel | HubRepository) -> str:
    """Return the text that names ``model``."""
    match model:
        case NoModel():
            return NONE
        case LocalToAgent(path):
            return path
        case UrlModel(url):
            return url
        case HuggingFaceModel():
            return f"{HUGGING_FACE}{model.repo_id}/{model.filename}@{model.revision}"
        case HubRepository():
            quantisation = "" if model.quantisation is None else f":{model.quantisation}"
            return f"{HUGGING_FACE}{model.repo_id}{quantisation}@{model.revision}"


def _hub(text: str) -> HuggingFaceModel | HubRepository:
    place, at, revision = text.removeprefix(HUGGING_FACE).rpartition("@")
    if not at:
        place, revision = revision, DEFAULT_REVISION
    organisation, _, rest = place.partition("/")
    repository, slash, filename = rest.partition("/")
    if organisation and filename and repository and revision:
        return HuggingFaceModel(
            filename=filename, repo_id=f"{organisation}/{repository}", revision=revision
        )
    repository, colon, quantisation = repository.partition(":")
    is_file = repository.lower().endswith(".gguf")  # it is the organisation that is missing
    lacks_quantisation = bool(colon) and not quantisation
    if slash or is_file or lacks_quantisation or not (organisation and repository and revision):
        raise UnknownSourceError(
            f"{text!r} is not hf:org/repo, hf:org/repo:Q4_K_M, hf:org/repo/file or "
            "hf:org/repo/file@revision"
        )
    return HubRepository(f"{organisation}/{repository}", quantisation or None, revision)


def _url(text: str) -> UrlModel | HuggingFaceModel:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  # raises for one that is no port
    except ValueError as error:
        raise UnknownSourceError(f"{text!r} is no URL: {error}") from error
    if not parts.hostname:
        raise UnknownSourceError(f"{text!r} names no host")
    segments = parts.path.strip("/").split("/")
    is_page = len(segments) >= 5 and segments[2] in {"blob", "resolve"} and all(segments)
    if parts.netloc == PANEL_HOST and is_page:
        organisation, repository, _, revision, *file = map(unquote, segments)
        return HuggingFaceModel(
            filename="/".join(file), repo_id=f"{organisation}/{repository}", revision=revision
        )
    return UrlModel(text)


def _pushed(text: str) -> UrlModel:
    if pushed_source(text) is None:
        raise UnknownSourceError(f"{text!r} is not store://sha256/HEX/NAME, as a push prints it")
    return UrlModel(text)


def _agent(text: str) -> LocalToAgent:
    parts = urlsplit(text)
    path = unquote(parts.path)
    if parts.netloc:
        raise UnknownSourceError(
            f"{text!r} would lose its first folder: write agent:/{parts.netloc}{path}"
        )
    if not path.startswith("/"):
        raise UnknownSourceError(f"{text!r} is no absolute path: write agent:/path")
    return LocalToAgent(path)


GGUF_MAGIC: Final = b"GGUF"


def check_magic(first_bytes: bytes, subject: Subject) -> None:
    """NotAModelError unless a GGUF file begins so."""
    if not first_bytes.startswith(GGUF_MAGIC):
        start = bytes(first_bytes[: len(GGUF_MAGIC)])
        raise NotAModelError(subject, f"it is no GGUF file: it begins with {start!r}")


def is_gguf(path: Path) -> bool:
    """Return whether the file begins as a model does; False if it is gone. Blocking, OSError."""
    return read_start(path).startswith(GGUF_MAGIC)


def read_start(path: Path) -> bytes:
    """Return as many bytes as the magic has, fewer of a shorter file. Blocking, OSError."""
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        return b""
