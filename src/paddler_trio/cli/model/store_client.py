"""Questions of client commands to a balancer's model store, and uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
import httpx

from paddler_trio.cli.balancer_http import (
    BalancerClient,
    BalancerRefusedError,
    clear_errors,
    open_http,
    read_json,
    refuse_unless_success,
)
from paddler_trio.cli.client_flags import ManagementFlags

STORE_PATH: Final = "/api/v2/store"
ANSWER_S: Final = 30.0
"""The store reports at least so often that it still compares a hash."""
PRUNE_S: Final = 300.0
"""Files are removed one after the other; a slow file system takes seconds for each."""
MISMATCH: Final = 422
UPLOAD_OFFSET: Final = "Upload-Offset"


@attrs.frozen(eq=False)
class StoreClient(BalancerClient):
    """A conversation with one balancer's store; use it as a context manager.

    Every method raises BalancerUnreachableError or BalancerRefusedError.
    """

    @classmethod
    def open(cls, management: ManagementFlags) -> StoreClient:
        """Return a client that has sent nothing yet; errors are those of `http_settings`."""
        return cls(management.address, open_http(management, answer_s=ANSWER_S))

    def here_bytes(self, sha256: str) -> int | None:
        """Return how much of a file is there; None if all of it is, and its hash was compared."""
        path = f"{STORE_PATH}/blobs/sha256/{sha256}"
        with clear_errors(self.address):
            answer = self._http.head(path)
        if answer.status_code >= 400 and UPLOAD_OFFSET not in answer.headers:
            with clear_errors(self.address):  # the answer to a HEAD has no text: ask again for it
                text = self._http.get(path)
                # a store that was being started may be up by now
                answer = text if text.status_code == answer.status_code else self._http.head(path)
        if answer.status_code == 404 and UPLOAD_OFFSET in answer.headers:
            return _number(answer)
        refuse_unless_success(answer)
        return None

    def put_blob(
        self, sha256: str, start: int, stop: int, total_bytes: int, pieces: Iterator[bytes]
    ) -> None:
        """Send the bytes ``start`` to ``stop``; BalancerRefusedError with the status ``MISMATCH``
        if these are the last ones and what is there then has another hash."""
        headers = {
            "Content-Length": str(stop - start),
            "Content-Range": f"bytes {start}-{stop - 1}/{total_bytes}",
        }
        with clear_errors(self.address):
            answer = self._http.put(
                f"{STORE_PATH}/blobs/sha256/{sha256}", content=pieces, headers=headers
            )
        refuse_unless_success(answer)

    def put_manifest(self, sha256: str, text: bytes) -> None:
        """Name a model whose files are all there."""
        with clear_errors(self.address):
            answer = self._http.put(
                f"{STORE_PATH}/manifests/sha256/{sha256}",
                content=text,
                headers={"Content-Type": "application/json"},
            )
        refuse_unless_success(answer)

    def pin(self, sources: Sequence[str], *, pinned: bool) -> dict[str, object]:
        """Keep the models that these select, or keep them no longer; the models."""
        method = "PUT" if pinned else "DELETE"
        with clear_errors(self.address):
            answer = self._http.request(
                method, f"{STORE_PATH}/pins", params=[("source", source) for source in sources]
            )
        return _object(answer)

    def prune(self, rules: Mapping[str, object]) -> dict[str, object]:
        """Remove what ``rules``, the fields of ``Prune``, do not keep; what went."""
        with clear_errors(self.address):
            answer = self._http.post(f"{STORE_PATH}/prune", json=dict(rules), timeout=PRUNE_S)
        return _object(answer)

    def listing(self) -> dict[str, object] | None:
        """Return what is there; None from a balancer without a store."""
        with clear_errors(self.address):
            answer = self._http.get(STORE_PATH)
        if answer.status_code in {404, 501}:
            return None
        return _object(answer)


def _object(answer: httpx.Response) -> dict[str, object]:
    refuse_unless_success(answer)
    try:
        value = read_json(answer.text)
    except ValueError as error:
        raise BalancerRefusedError(200, f"the store sent no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BalancerRefusedError(200, "the store sent JSON that is no object")
    return value


def _number(answer: httpx.Response) -> int:
    text = str(answer.headers[UPLOAD_OFFSET])
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise BalancerRefusedError(200, f"the store sent the Upload-Offset {text[:40]!r}")
    return int(text)
