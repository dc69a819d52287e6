"""Protocols of what a link to a balancer needs of an agent, whether that runs models or stands in
front of a server that does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from paddler_trio.agent.link.link_reply import LinkReply
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.messages import GetChatTemplateOverride, GetModelMetadata
from paddler_trio.wire.trio.desired_state_extras import Extras
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Cache


class LinkModels(Protocol):
    """Follows the desired state."""

    @property
    def metadata(self) -> Mapping[str, str] | None:
        """The metadata of the model that is served."""
        ...

    @property
    def judges_beside(self) -> bool:
        """Return whether it can be asked whether it would load a model beside the one in force."""
        ...

    @property
    def desired(self) -> AgentDesiredState | None: ...

    def set_desired(self, desired: AgentDesiredState, extras: Extras = ...) -> None: ...

    def set_store(self, store: StoreAddress | None) -> None: ...


class LinkRequests(Protocol):
    """The part of an agent that does what the balancer asks, and answers on the connection that it
    was asked over."""

    def work(self, frame: RequestFrame, reply: LinkReply) -> None:
        """Work on a generation, an embedding or a question."""
        ...

    def ask_fit(self, question: AskFit, reply: LinkReply) -> None: ...

    def operate(self, operate: Operate, reply: LinkReply) -> None:
        """Carry out an order of an operator."""
        ...

    def command_cache(self, command: Cache, reply: LinkReply) -> None: ...

    def open_tunnel(self, secret: str, reply: LinkReply) -> None: ...

    def stop(self, wire_id: str, reply: LinkReply) -> None: ...

    def stop_all_of(self, reply: LinkReply) -> None: ...


def paddlers_answer(
    models: LinkModels, query: GetModelMetadata | GetChatTemplateOverride
) -> Mapping[str, Mapping[str, Mapping[str, str] | str] | None]:
    """Return the answer to one of the questions that Paddler's protocol has."""
    match query:
        case GetModelMetadata():
            metadata = models.metadata
            return {"ModelMetadata": None if metadata is None else {"metadata": metadata}}
        case GetChatTemplateOverride():
            override = None if models.desired is None else models.desired.chat_template_override
            template = None if override is None else {"content": override.content}
            return {"ChatTemplateOverride": template}
