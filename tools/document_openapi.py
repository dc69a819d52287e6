"""Write the OpenAPI documents and ``docs/reference/http_api.md`` from the routers and the types.

.venv/bin/python tools/document_openapi.py          # writes them
.venv/bin/python tools/document_openapi.py --check  # exit code 1 if it would change one

There is a document for each port: both answer ``/metrics``, and not with the same. What a route is
for stands in ``tools/openapi_operations.py``; that each route is described, and nothing else, is an
error here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openapi_operations import (
    APIS,
    INFERENCE,
    JSON,
    MANAGEMENT,
    PROBES,
    STORE,
    TEXT,
    TEXT_SCHEMA,
    Operation,
    Table,
)
from openapi_routes import BalancerRoutes, Route, balancer_routes
from openapi_schemas import Schemas

from paddler_trio import __version__
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openapi_document import openapi
from paddler_trio.net.server.router import WEBSOCKET
from paddler_trio.wire.tags import EXTERNAL_TAGS

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
INFERENCE_FILE, MANAGEMENT_FILE = "inference.openapi.json", "management.openapi.json"
PAGE = "http_api.md"

STATUSES = {
    400: "Something is wrong with the request; the text names it.",
    401: "No API key, an unknown one, or one that has expired.",
    403: "The key is for something else, or the page or the Host is not allowed.",
    404: "There is none.",
    408: "The body came too slowly.",
    409: "Somebody else was first, it is there already, or several have the name.",
    411: "An upload needs a Content-Length.",
    413: "The body is too large.",
    415: "The body is of a type or an encoding that is not taken.",
    422: "The content contradicts itself.",
    429: "A limit is reached; see Retry-After.",
    500: "A fault of ours; the log has it.",
    501: "Not supported here; the text says what would be.",
    502: "Whoever should answer is lost.",
    503: "Overload or shutdown; see Retry-After.",
    504: "No answer in time.",
    507: "The model store has no room.",
}
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}

PAGE_HEAD = """\
# HTTP routes

Every route of both ports. This page and the OpenAPI documents are written by
`tools/document_openapi.py` from the routers that answer:

* [inference.openapi.json](inference.openapi.json), for clients; the balancer itself answers the
  part that is OpenAI's under `/openapi.json`;
* [management.openapi.json](management.openapi.json), for operators.

Where a port asks for keys, send `Authorization: Bearer KEY` or `x-api-key: KEY`; only `/health`,
`/livez`, `/readyz`, `/v1/health`, `/models` and `/api/v2/join` ask for none. What goes wrong:
[errors](errors.md). What fields mean: [native API](../api_v2.md), [OpenAI's](../openai.md),
[fleet](../fleet.md), [requests](../requests.md), [events](../events.md), [models](../models.md).
"""


def documents() -> dict[str, str]:
    """The text of each file, by its name."""
    routes = balancer_routes()
    inference, management = _inference(routes), _management(routes)
    return {
        INFERENCE_FILE: _text(inference),
        MANAGEMENT_FILE: _text(management),
        PAGE: _page(inference, management),
    }


def _inference(routes: BalancerRoutes) -> dict[str, Any]:
    described = openapi(ApiLimits())
    schemas = Schemas()
    paths: dict[str, Any] = {}
    _check(routes.native, INFERENCE, "INFERENCE")
    for route in routes.native:
        _add(paths, route, _operation(route, INFERENCE[route], schemas))
    known: dict[Route, dict[str, Any]] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            first = routes.same[method.upper(), path]
            known[first] = operation
    for route in routes.apis:
        first = routes.same[route]
        if route in routes.refused:
            operation = _operation(route, Operation("Not supported; 501 says why"), schemas)
            operation["responses"] = {"501": _answered(STATUSES[501], JSON, {})}
        elif first in known:
            operation = {**known[first], "operationId": _id_of(route)}
            if first != route:
                operation["summary"] += f"; the same as {first[1]}"
        elif first in APIS:
            operation = _operation(route, APIS[first], schemas)
        else:
            raise LookupError(f"{route} is described nowhere: add it to APIS in openapi_operations")
        _add(paths, route, operation)
    components = described["components"]
    return _document(
        "paddler-trio: inference", "http://127.0.0.1:8061", paths, {
            "schemas": components["schemas"] | schemas.named,
            "responses": components["responses"],
        },
    )  # fmt: skip


def _management(routes: BalancerRoutes) -> dict[str, Any]:
    schemas = Schemas()
    paths: dict[str, Any] = {}
    for found, table, name in (
        (routes.management, MANAGEMENT, "MANAGEMENT"),
        (routes.store, STORE, "STORE"),
    ):
        _check(found, table, name)
        for route in found:
            _add(paths, route, _operation(route, table[route], schemas))
    return _document(
        "paddler-trio: management", "http://127.0.0.1:8060", paths, {"schemas": schemas.named}
    )


def _check(routes: Iterable[Route], table: Table, name: str) -> None:
    there = set(routes)
    for route in sorted(there - set(table)):
        raise LookupError(f"{route} is described nowhere: add it to {name} in openapi_operations")
    for route in sorted(set(table) - there):
        raise LookupError(f"{route} in {name} of openapi_operations is no route: remove it there")


def _document(
    title: str, server: str, paths: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "servers": [{"url": server}],
        "security": [{}, *({name: []} for name in KEYS)],
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {
            **{name: dict(sorted(each.items())) for name, each in components.items()},
            "securitySchemes": KEYS,
        },
    }


def _add(paths: dict[str, Any], route: Route, operation: dict[str, Any]) -> None:
    method, pattern = route
    path = pattern.replace("...}", "}")
    verb = "get" if method == WEBSOCKET else method.lower()
    at_path = paths.setdefault(path, {})
    if verb in at_path:
        raise ValueError(f"{method} {path} is routed twice")
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        place = [
            {"name": name, "in": "path", "required": True, "schema": TEXT_SCHEMA} for name in names
        ]
        operation = {**operation, "parameters": [*place, *operation.get("parameters", [])]}
    at_path[verb] = operation


def _operation(route: Route, known: Operation, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": _id_of(route), "summary": known.does}
    if route[0] == WEBSOCKET:
        operation["description"] = "A WebSocket upgrade."
    if known.query:
        operation["parameters"] = [
            {"name": name, "in": "query", "description": does, "schema": TEXT_SCHEMA}
            for name, does in known.query.items()
        ]
    if known.body is not None:
        is_binary = isinstance(known.body, dict) and known.body.get("format") == "binary"
        media = "application/octet-stream" if is_binary else JSON
        operation["requestBody"] = {
            "required": not known.may_be_empty,
            "content": {media: {"schema": _body(known, schemas)}},
        }
    schema = {} if known.answer is None else schemas.of(known.answer)
    told = known.does if known.media else "Done."
    responses = {str(known.status): _answered(told, known.media, schema)}
    errors = set(known.errors) | ({401, 403, 500} if route not in PROBES else set())
    for status in sorted(errors):
        responses[str(status)] = _answered(STATUSES[status], TEXT, TEXT_SCHEMA)
    return {**operation, "responses": responses}


def _body(known: Operation, schemas: Schemas) -> dict[str, Any]:
    if isinstance(known.body, dict):
        return known.body
    if known.body not in EXTERNAL_TAGS and not known.more:
        return schemas.of(known.body)
    # the tag that the class has elsewhere is the route itself here
    record = schemas.record(known.body)
    return {**record, "properties": {**known.more, **record["properties"]}}


def _answered(description: str, media: str, schema: dict[str, Any]) -> dict[str, Any]:
    if not media:
        return {"description": description}
    return {"description": description, "content": {media: {"schema": schema}}}


def _id_of(route: Route) -> str:
    method, pattern = route
    words = re.findall(r"[A-Za-z0-9]+", pattern)
    verb = "socket" if method == WEBSOCKET else method.lower()
    return "_".join([verb, *words]).lower()


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _page(inference: dict[str, Any], management: dict[str, Any]) -> str:
    paths = inference["paths"]
    native = {path: each for path, each in paths.items() if path.startswith("/api/")}
    others = {path: each for path, each in paths.items() if path not in native}
    managed = management["paths"]
    store = {path: each for path, each in managed.items() if path.startswith("/api/v2/store")}
    rest = {path: each for path, each in managed.items() if path not in store}
    return "\n".join(
        [
            PAGE_HEAD,
            "## Inference port: Paddler's routes and ours\n",
            _table(native),
            "## Inference port: APIs of others, probes\n",
            "OpenAI's, Anthropic's and llama-server's.\n",
            _table(others),
            "## Management port\n",
            _table(rest),
            "## Management port: the model store\n",
            "With `--model-store`.\n",
            _table(store),
        ]
    )


def _table(paths: dict[str, Any]) -> str:
    lines = ["| route | what it does |", "|---|---|"]
    for path, operations in paths.items():
        for verb, operation in operations.items():
            is_socket = "101" in operation["responses"]
            method = "WebSocket" if is_socket else verb.upper()
            lines.append(f"| `{method} {path}` | {operation['summary']} |")
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Write the files, or with ``--check`` say whether they are up to date."""
    FOLDER.mkdir(exist_ok=True)
    is_check = arguments == ["--check"]
    stale = []
    for name, text in documents().items():
        path = FOLDER / name
        if not is_check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/reference/{name}")
    if stale:
        print(f"{', '.join(stale)}: out of date; run tools/document_openapi.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
