"""The endpoints of ``/v1/responses``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import parse_qs

import attrs

from paddler_trio.balancer.apis.answers.answer import Step, reader_of
from paddler_trio.balancer.apis.answers.kept_logprobs import MANY_NUMBERS
from paddler_trio.balancer.apis.answers.run_requests import gather, stream
from paddler_trio.balancer.apis.answers.timings import Reports, Stopwatch
from paddler_trio.balancer.apis.api_errors import ApiError, invalid, naming_fields
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import (
    Backend,
    cluster_parameters,
    model_name,
    must_generate,
    named,
)
from paddler_trio.balancer.apis.image_fetch import fetch_images
from paddler_trio.balancer.apis.questions import count_tokens
from paddler_trio.balancer.apis.responses.client_tools import Item
from paddler_trio.balancer.apis.responses.response_output import Output, new_id
from paddler_trio.balancer.apis.responses.responses_fields import ITEM_REFERENCE
from paddler_trio.balancer.apis.responses.responses_request import (
    ResponsesRequest,
    read_input_tokens,
    read_responses,
)
from paddler_trio.balancer.apis.responses.responses_response import ResponseHeading, ResponseStream
from paddler_trio.balancer.apis.responses.responses_store import (
    ResponseStore,
    StoredResponse,
    not_stored,
)
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server.input_budget import BudgetSpentError
from paddler_trio.net.server.json_body import no_room
from paddler_trio.wire.json_text import dumps_in_runs, dumps_within


@attrs.define(eq=False)
class Responses:
    """The endpoints that share one store."""

    store: ResponseStore

    async def create(self, backend: Backend, exchange: ApiExchange) -> None:
        request = await exchange.read(backend.limits, read_responses)
        if exchange.is_exact:
            request = attrs.evolve(request, delivery=request.delivery.exactly(exchange.ignored))
        references = _references(request)
        request = await self._resolved(request, references, exchange)
        delivery = request.delivery
        backend = backend.routed(exchange, delivery.model)
        heading = ResponseHeading(
            request=request,
            model=model_name(backend, exchange, delivery.model),
            created=int(time.time()),
            parameters=cluster_parameters(backend),
        )
        named(heading, backend, exchange, delivery.model)
        must_generate(backend)
        before = await self._before(request, references, exchange)
        generate = await exchange.run(lambda: request.generate(before))
        kept = await _texts_of(request, before, exchange) if request.is_stored else None
        works = await fetch_images([generate], backend.settings, exchange.room, exchange.http)
        watch = Stopwatch(time.monotonic)  # it is read in threads, too
        reports = Reports(watch, delivery.with_progress, delivery.with_timings)
        output = Output(
            reader_of(generate),
            with_logprobs=request.logprobs is not None,
            with_summary=request.summary is not None,
            tools=request.offered(before),
            reports=reports,
        )

        finish = partial(self._finish, heading, output, kept, exchange)
        with naming_fields(prompt="input", constraint="text.format"):
            if delivery.is_stream:
                encoder = ResponseStream(heading, output, finish, watch, exchange.is_large)
                await stream(
                    backend,
                    exchange,
                    works,
                    encoder,
                    keep_alive_s=delivery.ping_s,
                    is_long=encoder.is_long,
                    held=lambda: output.streamed_bytes,
                )
            else:
                await gather(backend, exchange, works, partial(_take, output))
                is_long = output.num_logprobs > MANY_NUMBERS
                response = await exchange.run_long(finish, is_long=is_long)
                await exchange.send_json(200, response)

    def _finish(
        self,
        heading: ResponseHeading,
        output: Output,
        kept: tuple[bytes, bytes, int] | None,
        exchange: ApiExchange,
    ) -> Json:
        """Return the whole response, once it is stored with what is ``kept`` of its request."""
        response = heading.finished(output, now=int(time.time()))
        if kept is not None:
            # of a text that is too long to be kept no more is written
            text = dumps_within(response, self.store.max_bytes)
            is_kept = text is not None and self.store.keep(
                StoredResponse.of(_owner(exchange), response, *kept, response_json=text)
            )
            if not is_kept and not exchange.is_exact:
                response["store"] = False
        return response

    async def count_tokens(self, backend: Backend, exchange: ApiExchange) -> None:
        request = await exchange.read(backend.limits, read_input_tokens)
        references = _references(request)
        request = await self._resolved(request, references, exchange)
        backend = backend.routed(exchange, request.delivery.model)
        must_generate(backend)
        before = await self._before(request, references, exchange)
        conversation = await exchange.run(lambda: request.conversation(before))
        tokens = await count_tokens(backend, exchange, conversation)
        body = {"object": "response.input_tokens", "input_tokens": tokens}
        await exchange.send_json(200, body)

    async def get(self, backend: Backend, exchange: ApiExchange) -> None:
        """Answer with a stored response."""
        stored = self._stored(exchange)
        if _query(exchange).get("stream", ["false"])[-1].lower() not in ("false", "0"):
            raise invalid("stream is not supported: the response has ended", "stream")
        response = await exchange.run(lambda: stored.response)
        if exchange.is_exact:
            response.pop("store", None)
        await exchange.send_json(200, response)

    async def list_items(self, backend: Backend, exchange: ApiExchange) -> None:
        """Answer with the items of its input."""
        stored, query = self._stored(exchange), _query(exchange)
        page = await exchange.run(lambda: _page(stored, query))
        await exchange.send_json(200, page)

    def _stored(self, exchange: ApiExchange) -> StoredResponse:
        """Return the one that the path names; ApiError 404, or HttpProblem 503 without room for
        it."""
        stored = self.store.get(exchange.tail, owner=_owner(exchange))
        if stored is None:
            raise not_stored(exchange.tail)
        _reserve(exchange, stored.conversation_weight_bytes + stored.size_bytes)
        return stored

    async def delete(self, backend: Backend, exchange: ApiExchange) -> None:
        if not self.store.drop(exchange.tail, owner=_owner(exchange)):
            raise not_stored(exchange.tail)
        body = {"id": exchange.tail, "object": "response", "deleted": True}
        await exchange.send_json(200, body)

    async def _resolved(
        self, request: ResponsesRequest, places: Mapping[str, int], exchange: ApiExchange
    ) -> ResponsesRequest:
        """Return the request with the items themselves where it refers to them.

        Errors:
          ApiError: 400 for an item that is not stored.
          HttpProblem: 503 if there is no room for them.
        """
        if not places:
            return request
        sources: dict[str, StoredResponse] = {}
        for item_id, index in places.items():
            stored = self.store.having(item_id, owner=_owner(exchange))
            if stored is None:
                raise invalid(
                    f"input[{index}].id is {item_id!r}, which is no item of a stored response's "
                    "output; send the item itself",
                    f"input[{index}].id",
                    code="item_not_found",
                )
            sources[stored.id] = stored
        _reserve(exchange, sum(each.response_weight_bytes for each in sources.values()))
        exchange.has_stored_items = True

        def resolve() -> list[Item]:
            items = list(request.items)
            for stored in sources.values():
                for item in stored.output:
                    index = places.get(str(item["id"]))
                    if index is not None:
                        items[index] = item
            return items

        return attrs.evolve(request, items=await exchange.run(resolve))

    async def _before(
        self, request: ResponsesRequest, places: Mapping[str, int], exchange: ApiExchange
    ) -> Sequence[Item]:
        """Return the items that the response continues.

        Errors:
          ApiError: 400 if they are not stored any more, or the input refers to one of them.
          HttpProblem: 503 if there is no room for them.
        """
        previous = request.previous_response_id
        if previous is None:
            return ()
        stored = self.store.get(previous, owner=_owner(exchange))
        if stored is None:
            raise ApiError(
                400,
                f"previous_response_id: {not_stored(previous).message}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        _reserve(exchange, stored.conversation_weight_bytes)
        exchange.has_stored_items = True
        before = await exchange.run(lambda: stored.conversation)
        for item in before if places else ():
            index = places.get(str(item.get("id")))
            if index is not None:
                raise invalid(
                    f"input[{index}].id is {item['id']!r}, an item of what previous_response_id "
                    "goes on after: leave it out",
                    f"input[{index}].id",
                )
        return before


def _take(output: Output, step: Step) -> int:
    """Take a step; return by how many bytes the output grows."""
    before = output.held_bytes
    for _ in output.take(step.results):
        pass  # the items grow; the events have no reader
    return output.held_bytes - before


def _references(request: ResponsesRequest) -> dict[str, int]:
    """Return where in the input each stored item is referred to.

    ApiError 400 for an item that is referred to twice: a short body would stand for a prompt
    without a bound.
    """
    places: dict[str, int] = {}
    for index, item in enumerate(request.items):
        if item.get("type") != ITEM_REFERENCE:
            continue
        item_id = str(item["id"])
        if item_id in places:
            raise invalid(
                f"input[{index}].id is {item_id!r}, as that of input[{places[item_id]}] is: an "
                "item is referred to once",
                f"input[{index}].id",
            )
        places[item_id] = index
    return places


def _reserve(exchange: ApiExchange, size_bytes: int) -> None:
    """Hold what is stored again for a request that may be short; HttpProblem 503."""
    try:
        exchange.room.grow(size_bytes)
    except BudgetSpentError as spent:
        raise no_room(spent) from spent


async def _texts_of(
    request: ResponsesRequest, before: Sequence[Item], exchange: ApiExchange
) -> tuple[bytes, bytes, int]:
    """Return what of the request is stored with its response, written before that is there.

    HttpProblem 503 if there is no room for it.
    """

    def write() -> tuple[bytes, bytes]:
        items = [_named(item) for item in request.items]
        return dumps_in_runs([*before]), dumps_in_runs(items)

    weight_bytes = exchange.room.used_bytes
    before_json, items_json = await exchange.run(write)
    _reserve(exchange, len(before_json) + len(items_json))
    return before_json, items_json, weight_bytes


def _owner(exchange: ApiExchange) -> str:
    return exchange.http.identity.key_name


def _named(item: Item) -> Item:
    """Items that are listed have ids."""
    if item.get("id"):
        return item
    return {**item, "type": item.get("type", "message"), "id": new_id("item_")}


def _query(exchange: ApiExchange) -> dict[str, list[str]]:
    return parse_qs(exchange.http.query.decode("latin-1"))


def _page(stored: StoredResponse, query: Mapping[str, list[str]]) -> Json:
    """Return one page of input items; ApiError 400 for a query that is none."""
    order = query.get("order", ["desc"])[-1]
    limit = query.get("limit", ["20"])[-1]
    if order not in ("asc", "desc"):
        raise invalid(f"order is {order[:40]!r}, must be asc or desc", "order")
    if not (limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= 100):
        raise invalid(f"limit is {limit[:40]!r}, must be a whole number from 1 to 100", "limit")
    items = stored.input_items
    items = items if order == "asc" else items[::-1]
    after = query.get("after", [""])[-1]
    if after:
        ids = [item.get("id") for item in items]
        if after not in ids:
            raise invalid(f"after is {after[:100]!r}, which is no item of this response", "after")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else "",
        "last_id": page[-1].get("id") if page else "",
        "has_more": len(items) > len(page),
    }
