"""The model to ask for where none is named: the one that the target itself lists first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import trio

from paddler_trio.cli.bench.client_connection import ClientConnection, cause_of, refusal_text
from paddler_trio.cli.bench.target import Target, TargetUnreachableError
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.http_client import BodyBrokenError
from paddler_trio.net.client.upstream_error import MalformedAnswerError

ANSWER_S = 10.0
MAX_ID_CHARS = 1024
"""Of a model: it is in every request."""


async def listed_model(target: Target) -> str:
    """The first model of ``GET /v1/models``, one that is loaded before one that is not.

    Errors:
      TargetUnreachableError: no connection, or a refusal.
      ConfigurationError: it lists no model.
    """
    client = ClientConnection(target)
    try:
        with trio.fail_after(ANSWER_S):
            status, body = await client.get("/v1/models")
    except (OSError, trio.BrokenResourceError, BodyBrokenError, MalformedAnswerError) as error:
        raise TargetUnreachableError(f"cannot reach {target.url}: {cause_of(error)}") from error
    except trio.TooSlowError as error:
        raise TargetUnreachableError(
            f"{target.url} does not answer within {ANSWER_S:g} s"
        ) from error
    finally:
        await client.close()
    if status in {401, 403}:
        raise TargetUnreachableError(
            f"{target.url} refused ({status}): {refusal_text(body)}; "
            "give --key-file or --against-key-file"
        )
    model = first_model(body) if status == 200 else None
    if model is None:
        raise ConfigurationError(
            f"{target.url} lists no model at /v1/models (status {status}): name one with "
            "--model or --against-model"
        )
    return model


def first_model(body: bytes) -> str | None:
    """The ``id`` of a list of models; None if there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    listed = value.get("data") if isinstance(value, dict) else None
    models = [each for each in listed if _is_model(each)] if isinstance(listed, Sequence) else []
    ready = [each for each in models if _is_ready(each)]
    return next((str(each["id"]) for each in (*ready, *models)), None)


def _is_model(entry: object) -> bool:
    name = entry.get("id") if isinstance(entry, dict) else None
    return isinstance(name, str) and 1 <= len(name) <= MAX_ID_CHARS


def _is_ready(entry: Mapping[str, object]) -> bool:
    """Servers that load models when they are asked for say which ones are loaded."""
    status = entry.get("status")
    return not isinstance(status, dict) or status.get("value") in {None, "loaded"}
