"""Change models for Ollama's programs: ``/api/create``, ``copy``, ``delete`` and ``pull``.

What they make is a preset over a deployment that there is, as a new revision of the fleet. It takes
a key that may manage.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.fields import object_in, text_in
from paddler_trio.balancer.apis.generation_fields import stop_of
from paddler_trio.balancer.apis.ollama.ollama_answers import NDJSON_HEADERS, line
from paddler_trio.balancer.apis.ollama.ollama_fields import (
    copy_record,
    create_record,
    delete_record,
    pull_record,
)
from paddler_trio.balancer.apis.ollama.ollama_models import named
from paddler_trio.balancer.apis.ollama.pull_progress import follow
from paddler_trio.balancer.apis.ollama.pulls import PRIORITY
from paddler_trio.balancer.apis.sampling_fields import sampling_of
from paddler_trio.balancer.fleet.deployment import LATEST
from paddler_trio.balancer.fleet.fleet_keeper import RevisionConflictError
from paddler_trio.balancer.fleet.stored_fleet import FleetTooLargeError
from paddler_trio.errors import StateDatabaseError
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState
from paddler_trio.wire.trio.presets import Preset, TokenBounds
from paddler_trio.wire.trio.work import SamplingOverrides

PATHS: Final = frozenset({"/api/create", "/api/copy", "/api/delete"})


def changes_models(exchange: Exchange) -> bool:
    """Return whether a request may change what is served."""
    return exchange.path in PATHS


async def create(backend: Backend, exchange: ApiExchange) -> None:
    """Make a preset of what a deployment or another preset is, or put it in the place of one."""
    _must_manage(exchange)
    values = await exchange.read_record(backend.limits, create_record)
    base = named(backend, exchange, text_in(values, "from"), "from").deployment
    before = base.preset or Preset(name=_name(values, "model"))
    preset = _changed(attrs.evolve(before, name=_name(values, "model")), values)
    await _store(backend, exchange, base.name, preset, f"/api/create from {base.id}")
    await _answer(exchange, values, "using existing layer", "writing manifest")


async def copy(backend: Backend, exchange: ApiExchange) -> None:
    """Give a model one more name, as a preset."""
    _must_manage(exchange)
    values = await exchange.read_record(backend.limits, copy_record)
    source = named(backend, exchange, text_in(values, "source"), "source").deployment
    preset = attrs.evolve(
        source.preset or Preset(name=_name(values, "destination")),
        name=_name(values, "destination"),
    )
    await _store(backend, exchange, source.name, preset, f"/api/copy of {source.id}")
    await exchange.send_written(200, b"")


async def delete(backend: Backend, exchange: ApiExchange) -> None:
    """Take a preset away, or a deployment that has none; with the only name under which a model was
    pulled goes its deployment.

    Errors:
      ApiError: 409 presets are made of the deployment.
    """
    _must_manage(exchange)
    values = await exchange.read_record(backend.limits, delete_record)
    served = named(backend, exchange, text_in(values, "model"))
    found, spec = served.deployment, _spec(backend, served.deployment.name)
    left = tuple(each for each in spec.presets if each != found.preset)
    if found.preset is None and left:
        names = ", ".join(each.name for each in left)
        raise ApiError(409, f"{found.id} is what {names} are made of: delete these first")
    state = backend.states.current.state
    is_pulled = _is_pulled(served) and spec.priority == PRIORITY
    if left or (found.preset is not None and not is_pulled):
        state = _with(state, attrs.evolve(spec, presets=left))
    else:
        state = FleetState(tuple(each for each in state.deployments if each.name != spec.name))
    await _apply(backend, exchange, state, f"/api/delete of {found.id}", found.id)
    await exchange.send_written(200, b"")


async def pull(backend: Backend, exchange: ApiExchange) -> None:
    """Succeed for a model that is served; fetch one of the hub for who may manage."""
    values = await exchange.read_record(backend.limits, pull_record)
    asked = text_in(values, "model")
    is_stream = values.get("stream") is not False
    try:
        served = named(backend, exchange, asked)
    except ApiError as error:
        if error.status != 404 or asked is None:
            raise
        await _fetch(backend, exchange, asked.removesuffix(LATEST), error, is_stream=is_stream)
        return
    if exchange.http.identity.may_manage and backend.pulls is not None and _is_pulled(served):
        # of one that another request has begun to fetch, the rest is told
        await follow(backend, exchange, backend.pulls, served.deployment.id, is_stream=is_stream)
        return
    await _answer(exchange, values, "pulling manifest")


def _is_pulled(backend: Backend) -> bool:
    name = backend.deployment.id
    return backend.deployment.preset is not None and name.lower().startswith(("hf.co/", "hf:"))


async def _fetch(
    backend: Backend, exchange: ApiExchange, name: str, unknown: ApiError, *, is_stream: bool
) -> None:
    """Have a deployment made of what a name of the hub names, and tell how far it is."""
    if exchange.preset is None and not exchange.http.identity.may_manage:
        why = "another one is fetched for an API key with the scopes inference and management"
        raise ApiError(403, f"{unknown.message}; {why}", param="model", code="insufficient_scope")
    _must_manage(exchange)
    spec = None
    if backend.pulls is not None:
        spec = await while_connected(exchange.http, partial(backend.pulls.deployment, name))
    if spec is None or backend.pulls is None:
        raise ApiError(
            501,
            f"{unknown.message}; a model is fetched by its repository, hf.co/ORG/REPO:QUANT, or by "
            "the operator, with `paddler-trio fleet apply`",
            param="model",
        )
    state = backend.states.current.state
    known = state.find(spec.name)
    if known is not None:  # another name of the same file, or of its newer commit
        spec = attrs.evolve(known, model=spec.model, presets=(*known.presets, *spec.presets))
        state = _with(state, spec)
    else:
        state = FleetState((*state.deployments, spec))
    await _apply(backend, exchange, state, f"/api/pull of {name}", name)
    await follow(backend, exchange, backend.pulls, name, is_stream=is_stream)


# ------------------------------------------------------------------------------------- inside


def _must_manage(exchange: ApiExchange) -> None:
    """Raise ApiError 403 unless the request has a key that may manage. Presets have no say here:
    the body is about one, and not for one."""
    exchange.find_preset = lambda model, allowed: None
    if not exchange.http.identity.may_manage:
        who = exchange.http.identity.key_name
        raise ApiError(
            403,
            f"{exchange.http.path} changes what is served: it needs an API key with the scopes "
            f"inference and management, and {f'the key {who!r}' if who else 'no key'} has them "
            "not; `paddler-trio key new NAME --scope inference --scope management` makes one",
            code="insufficient_scope",
        )


def _name(values: Mapping[str, Any], field: str) -> str:
    name = str(values[field]).removesuffix(LATEST)
    if not name:
        raise invalid(f"{field} is {str(values[field])!r}, must name a model", field)
    return name


def _changed(preset: Preset, values: Mapping[str, Any]) -> Preset:
    """Return the preset with what a request to create one says over it."""
    options = object_in(values, "parameters")
    system = text_in(values, "system")
    asked = sampling_of(options)
    changes = {
        field.name: getattr(asked, field.name)
        for field in attrs.fields(SamplingOverrides)
        if getattr(asked, field.name) != field.default
    }
    most = options.get("num_predict")
    bounds = TokenBounds(default=most) if isinstance(most, int) and most > 0 else preset.max_tokens
    return attrs.evolve(
        preset,
        system=preset.system if system is None else system or None,
        sampling=attrs.evolve(preset.sampling, **changes),
        stop=tuple(stop_of(options)) or preset.stop,
        max_tokens=bounds,
    )


def _spec(backend: Backend, name: str) -> DeploymentSpec:
    spec = backend.states.current.state.find(name)
    if spec is None:
        raise ApiError(501, f"{name} is not of the fleet's state, and can have no presets")
    return spec


async def _store(
    backend: Backend, exchange: ApiExchange, deployment: str, preset: Preset, note: str
) -> None:
    """Put a preset into the state, in the place of one of its name; ApiError 400 for a name that
    something else has."""
    state = backend.states.current.state
    spec = _spec(backend, deployment)
    known = state.presets.get(preset.name)
    if known is not None and known[0].name != deployment:  # it moves to another deployment
        others = tuple(each for each in known[0].presets if each.name != preset.name)
        state = _with(state, attrs.evolve(known[0], presets=others))
    presets = {each.name: each for each in spec.presets} | {preset.name: preset}
    state = _with(state, attrs.evolve(spec, presets=tuple(presets.values())))
    await _apply(backend, exchange, state, note, preset.name)


def _with(state: FleetState, spec: DeploymentSpec) -> FleetState:
    return FleetState(tuple(spec if each.name == spec.name else each for each in state.deployments))


async def _apply(
    backend: Backend, exchange: ApiExchange, state: FleetState, note: str, target: str
) -> None:
    """Store a state that was made for the revision in force.

    Errors:
      ApiError: 400 it cannot be, 409 another revision came first, 413 too large, 500 not stored.
    """
    http, states = exchange.http, backend.states
    try:
        revision = await states.apply(
            state,
            author=http.identity.key_name,
            note=note,
            expected_revision=states.current.revision,
        )
    except ShapeError as error:
        raise ApiError(400, error.text, code="invalid_value") from error
    except RevisionConflictError as error:
        raise ApiError(409, str(error)) from error
    except FleetTooLargeError as error:
        raise ApiError(413, str(error)) from error
    except StateDatabaseError as error:
        raise ApiError(500, str(error)) from error
    http.audit.record(http, "fleet applied", target, revision=revision.revision, note=note)


async def _answer(exchange: ApiExchange, values: Mapping[str, Any], *steps: str) -> None:
    """Say that it is done, with a line for each step unless one document is wanted."""
    success = {"status": "success"}
    if values.get("stream") is False:
        await exchange.send_json(200, success)
        return
    await exchange.begin(200, NDJSON_HEADERS)
    body = b"".join(line({"status": step}) for step in steps) + line(success)
    await exchange.send({"type": "http.response.body", "body": body, "more_body": False})
