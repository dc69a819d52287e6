"""A hub on this machine: the Hugging Face Hub's routes, headers and redirects, and its storage.

Two servers with two origins, as in the real world: the hub knows names and tokens, and redirects
large files to the storage, which knows only signed addresses. The real ``huggingface_hub`` drives
it in a test of its own, so what it plays is right. The storage misbehaves on request.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

import attrs

CHUNK = 64 * 1024


@attrs.frozen
class Seen:
    """A request that arrived; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte that were asked for."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2] or 2**62)) if match else None


@attrs.frozen(kw_only=True)
class Misbehaviour:
    """How a storage answers one request, where that differs from the right way.

    Args:
      status, headers: an answer without body instead of the file.
      body: other bytes than the file's; etag: another ETag.
      last_modified: a date instead of an ETag, and If-Range has to have it.
      drops_after: the connection is closed after so many bytes of the body.
      falls_silent_after: nothing more comes after so many bytes, and the connection stays.
      ignores_range: 200 and the whole file.
      content_range: another Content-Range, word for word.
      content_length: another Content-Length, word for word.
      hides_length: chunked, no Content-Length.
      waits_for: set before anything is sent.
    """

    status: int | None = None
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes | None = None
    etag: str | None = None
    last_modified: str | None = None
    drops_after: int | None = None
    falls_silent_after: int | None = None
    ignores_range: bool = False
    content_range: str | None = None
    content_length: str | None = None
    hides_length: bool = False
    waits_for: threading.Event | None = None


@attrs.define
class Repository:
    """One repository: files at one commit.

    Args:
      is_large: which files are stored as LFS.
      token: without it the repository is hidden; gated: visible, but files need the token.
    """

    files: dict[str, bytes]
    is_large: Callable[[str], bool] = lambda path: path.endswith(".gguf")
    token: str | None = None
    is_gated: bool = False
    refs: dict[str, str] = attrs.field(factory=dict)

    @property
    def commit(self) -> str:
        parts = [f"{path}\0{sha256(data)}" for path, data in sorted(self.files.items())]
        return hashlib.sha1("\n".join(parts).encode()).hexdigest()

    def commit_of(self, revision: str) -> str | None:
        if revision in {"main", "refs/heads/main", self.commit}:
            return self.commit
        return self.refs.get(revision)

    def etag(self, path: str) -> str:
        data = self.files[path]
        return sha256(data) if self.is_large(path) else git_hash(data)


@attrs.define(eq=False)
class HubServer:
    """See the module docstring. ``misbehave`` is asked for each request to the storage."""

    repositories: dict[str, Repository] = attrs.field(factory=dict)
    misbehave: Callable[[Seen], Misbehaviour | None] = lambda seen: None
    hub_misbehave: Callable[[Seen], Misbehaviour | None] = lambda seen: None
    seen: list[Seen] = attrs.field(factory=list)
    stored: dict[str, bytes] = attrs.field(factory=dict)
    """Plain files of the storage, by path, beside the repositories' blobs."""
    served_bytes: int = 0
    closing: threading.Event = attrs.field(factory=threading.Event)
    hub_url: str = ""
    storage_url: str = ""

    def seen_by_hub(self) -> list[Seen]:
        return [seen for seen in self.seen if not seen.path.startswith("/storage/")]

    def seen_by_storage(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.path.startswith("/storage/")]

    def blob(self, digest: str) -> bytes | None:
        for repository in self.repositories.values():
            for path, data in repository.files.items():
                if repository.etag(path) == digest:
                    return data
        return None


@contextmanager
def hub_server(repositories: dict[str, Repository] | None = None) -> Iterator[HubServer]:
    """Run a hub and its storage on 127.0.0.1, each on a port of its own."""
    hub = HubServer(repositories or {})

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_hub = hub

        def do_GET(self) -> None:
            answer(self, hub)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Answer) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.daemon_threads = True
        server.block_on_close = False
        thread.start()
    hub.hub_url, hub.storage_url = (f"http://127.0.0.1:{s.server_port}" for s in servers)
    try:
        yield hub
    finally:
        hub.closing.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# ---------------------------------------------------------------------------------------------


def answer(handler: BaseHTTPRequestHandler, hub: HubServer) -> None:
    seen = Seen(handler.command, handler.path, {k.lower(): v for k, v in handler.headers.items()})
    hub.seen.append(seen)
    try:
        if seen.path.startswith("/storage/"):
            answer_storage(handler, hub, seen)
        else:
            answer_hub(handler, hub, seen)
    except (BrokenPipeError, ConnectionResetError):
        handler.close_connection = True


def answer_hub(handler: BaseHTTPRequestHandler, hub: HubServer, seen: Seen) -> None:
    odd = hub.hub_misbehave(seen)
    if odd is not None:
        if odd.waits_for is not None:
            odd.waits_for.wait()
        send(handler, odd.status or 500, odd.headers)
        return
    parts = urlsplit(seen.path)
    api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|refs)(?:/(.+))?)?", parts.path)
    if api:
        answer_api(handler, hub, seen, unquote(api[1]), api[2] or "revision", unquote(api[3] or ""))
        return
    cached = re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", parts.path)
    resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", parts.path)
    match = cached or resolve
    if match is None:
        send(handler, 404, {})
        return
    repo_id, revision, path = map(unquote, match.groups())
    repository = allowed(handler, hub, seen, repo_id, is_file=True)
    if repository is None:
        return
    commit = repository.commit_of(revision)
    if commit is None:
        send(handler, 404, {"X-Error-Code": "RevisionNotFound"})
        return
    if path not in repository.files:
        send(handler, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        return
    data, etag = repository.files[path], repository.etag(path)
    headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
    if repository.is_large(path):
        headers["X-Linked-Size"] = str(len(data))
        headers["X-Linked-ETag"] = f'"{etag}"'
        headers["ETag"] = f'"{git_hash(data)}"'
        headers["Location"] = f"{hub.storage_url}/storage/{etag}?Signature=s3cr3t"
        send(handler, 302, headers)
    elif resolve:
        headers["Location"] = f"/api/resolve-cache/models/{repo_id}/{commit}/{quote(path)}"
        send(handler, 307, headers)
    else:
        send_file(handler, hub, seen, data, f'"{etag}"', Misbehaviour(), headers)


def answer_api(
    handler: BaseHTTPRequestHandler, hub: HubServer, seen: Seen, repo_id: str, what: str, rev: str
) -> None:
    repository = allowed(handler, hub, seen, repo_id, is_file=False)
    if repository is None:
        return
    if what == "refs":
        branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": repository.commit}]
        send_json(handler, {"branches": branches, "tags": [], "converts": []})
        return
    commit = repository.commit_of(rev or "main")
    if commit is None:
        send(handler, 404, {"X-Error-Code": "RevisionNotFound"})
        return
    entries = []
    for path, data in repository.files.items():
        lfs = (
            {"sha256": sha256(data), "oid": sha256(data), "size": len(data), "pointerSize": 134}
            if repository.is_large(path)
            else None
        )
        entries.append((path, data, lfs))
    if what == "tree":
        tree = [
            {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
            | ({} if lfs is None else {"lfs": lfs})
            for path, data, lfs in entries
        ]
        send_json(handler, tree)
        return
    blobs = "blobs" in parse_qs(urlsplit(seen.path).query)
    siblings = [
        {"rfilename": path}
        | ({"size": len(data), "blobId": git_hash(data)} if blobs else {})
        | ({"lfs": lfs} if blobs and lfs is not None else {})
        for path, data, lfs in entries
    ]
    send_json(
        handler,
        {"id": repo_id, "modelId": repo_id, "sha": commit, "siblings": siblings, "tags": []},
    )


def allowed(
    handler: BaseHTTPRequestHandler, hub: HubServer, seen: Seen, repo_id: str, *, is_file: bool
) -> Repository | None:
    """The repository if this request may see it; else the hub's refusal has been sent."""
    repository = hub.repositories.get(repo_id)
    token = seen.headers.get("authorization", "").removeprefix("Bearer ")
    may = repository is not None and repository.token in {None, token}
    if repository is not None and (may or (repository.is_gated and not is_file)):
        return repository
    if repository is not None and repository.is_gated:
        send(handler, 403 if token else 401, {"X-Error-Code": "GatedRepo"})
    else:
        send(handler, 404 if token else 401, {"X-Error-Code": "RepoNotFound"})
    return None


def answer_storage(handler: BaseHTTPRequestHandler, hub: HubServer, seen: Seen) -> None:
    odd = hub.misbehave(seen) or Misbehaviour()
    if odd.waits_for is not None:
        odd.waits_for.wait()
    if odd.status is not None:
        send(handler, odd.status, odd.headers)
        return
    name = unquote(urlsplit(seen.path).path.removeprefix("/storage/"))
    data = hub.stored.get(name)
    if data is None:
        data = hub.blob(name)
        if data is not None and "Signature=s3cr3t" not in seen.path:
            send(handler, 403, {})
            return
    if data is None:
        send(handler, 404, {})
        return
    if odd.body is not None:
        data = odd.body
    send_file(handler, hub, seen, data, odd.etag or f'"{sha256(data)[:32]}"', odd, odd.headers)


def send_file(
    handler: BaseHTTPRequestHandler,
    hub: HubServer,
    seen: Seen,
    data: bytes,
    etag: str,
    odd: Misbehaviour,
    more: dict[str, str],
) -> None:
    """The file or the range of it that was asked for, with RFC 9110's conditions."""
    asked = seen.range
    condition = seen.headers.get("if-range")
    validator = (
        {"ETag": etag} if odd.last_modified is None else {"Last-Modified": odd.last_modified}
    )
    start, stop, status = 0, len(data), 200
    headers = {**more, **validator, "Accept-Ranges": "bytes"}
    if asked and not odd.ignores_range and condition in {None, *validator.values()}:
        start, stop, status = asked[0], min(asked[1] + 1, len(data)), 206
        if start >= len(data):
            send(handler, 416, {"Content-Range": f"bytes */{len(data)}"})
            return
        headers["Content-Range"] = odd.content_range or f"bytes {start}-{stop - 1}/{len(data)}"
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if odd.hides_length:
        handler.send_header("Transfer-Encoding", "chunked")
    else:
        handler.send_header("Content-Length", odd.content_length or str(stop - start))
    handler.end_headers()
    if seen.method == "HEAD":
        return
    body = memoryview(data)[start:stop]
    sent = 0
    while sent < len(body):
        count = min(CHUNK, len(body) - sent)
        if odd.drops_after is not None:
            count = min(count, odd.drops_after - sent)
            if count <= 0:
                handler.close_connection = True
                return
        if odd.falls_silent_after is not None:
            count = min(count, odd.falls_silent_after - sent)
            if count <= 0:
                hub.closing.wait()
                handler.close_connection = True
                return
        piece = body[sent : sent + count]
        hub.served_bytes += count  # before a client can have it all, and ask for this number
        if odd.hides_length:
            handler.wfile.write(b"%x\r\n" % count + piece + b"\r\n")
        else:
            handler.wfile.write(piece)
        sent += count
    if odd.hides_length:
        handler.wfile.write(b"0\r\n\r\n")


def send_json(handler: BaseHTTPRequestHandler, value: object) -> None:
    send(handler, 200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def send(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes = b""
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if "Content-Length" not in headers:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
