"""The model store's process of a balancer, and which models it shall keep."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.model_store_child import ModelStoreChild
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.processes.model_store.store_messages import MAX_MESSAGE_BYTES
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    UrlModel,
)

log = structlog.get_logger("store")

MAX_DESIRED_BYTES: Final = MAX_MESSAGE_BYTES * 3 // 4
"""More than the longest names of two models and their projections."""


def model_store_child(config: BalancerConfig, states: FleetKeeper) -> ModelStoreChild | None:
    """Return the store's process, not started yet; ConfigurationError for a folder that cannot be
    used."""
    if config.model_store is None:
        return None
    folder = Path(os.path.abspath(config.model_store))  # noqa: PTH100  # links stay as they are
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--model-store {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--model-store {folder}: this user may not write there")
    if config.model_store_size_bytes == 0:
        raise ConfigurationError(
            "--model-store needs --model-store-size, such as 200GB: what it may take of the disk"
        )
    return ModelStoreChild(
        folder,
        config.model_store_size_bytes,
        desired=lambda: desired_models(states.wanted_models()),
        desired_changes=states.published,
    )


def readable_models(
    states: FleetKeeper, dispatcher: Dispatcher, agent: AgentIdentity
) -> tuple[DesiredModel, ...]:
    """The models whose files an agent's credential opens: what is desired of deployments that it
    may serve, and what agents were just told to fetch or to judge."""
    asked = [model for each in dispatcher.agents.values() for model in each.questions.asked_models]
    return (*states.wanted_models(lambda spec: agent.may_meet(spec.where)), *asked)


def desired_models(models: Sequence[DesiredModel]) -> tuple[bytes, ...]:
    """Return the JSON of those models that agents fetch; as many as one message to the store
    holds."""
    texts: list[bytes] = []
    left_bytes = MAX_DESIRED_BYTES
    for model in models:
        if isinstance(model, UrlModel | HuggingFaceModel):
            text = dumps(unstructure(model, DesiredModel))
            left_bytes -= len(text)
            if left_bytes < 0:
                log.warning(
                    "the store may drop what is desired: too many long names", told=len(texts)
                )
                break
            texts.append(text)
    return tuple(texts)
