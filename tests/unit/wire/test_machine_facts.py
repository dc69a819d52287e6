"""Facts about machines are strangers' words: what makes sense is kept, and nothing else."""

from __future__ import annotations

import json
import math

import attrs
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.wire.codec import dumps, loads
from paddler_trio.wire.trio.operations.machine_facts import (
    MAX_GPUS,
    MAX_TEXT_CHARS,
    GpuFacts,
    MachineFacts,
    machine_message,
    read_facts,
)
from paddler_trio.wire.trio.trio_link import Machine, parse_extension, render_extension

GPU = GpuFacts(name="NVIDIA H200", driver="570.1", memory_bytes=1e11, busy=0.5, power_w=412.0)
FACTS = MachineFacts(system="Debian 12", cpu="EPYC", cores=2.0, busy=0.25, up_s=12.5, gpus=(GPU,))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.sampled_from([each.name for each in attrs.fields(MachineFacts)])


def test_facts_go_over_the_link_as_they_are() -> None:
    frame = loads(render_extension(machine_message(FACTS)))
    assert isinstance(frame, dict)
    message = parse_extension(frame["Trio"])
    assert isinstance(message, Machine)
    assert read_facts(message.facts) == FACTS


@given(st.dictionaries(NAMES, JSON) | JSON)
def test_any_json_gives_facts_within_their_bounds(raw: object) -> None:
    facts = read_facts(raw)
    texts = [each for each in attrs.astuple(facts, recurse=False) if isinstance(each, str)]
    assert all(len(text) <= 10 * MAX_TEXT_CHARS and text.isprintable() for text in texts)
    assert facts.busy is None or 0 <= facts.busy <= 1
    assert len(facts.gpus) <= MAX_GPUS
    json.loads(dumps(attrs.asdict(facts)))


def test_what_makes_no_sense_is_left_out_and_the_rest_is_kept() -> None:
    raw = {
        "system": "x" * 1000,
        "cpu": "a\x1b[31mred\u202e",
        "kernel": 7,
        "cores": True,
        "busy": 1.5,
        "up_s": 10**400,
        "memory_bytes": math.nan,
        "temperature_c": 61,
        "of_a_newer_version": {"a": 1},
        "gpus": [{"name": "one"}, "no GPU", *[{}] * 1000],
    }
    facts = read_facts(raw)
    assert facts == MachineFacts(
        system="x" * MAX_TEXT_CHARS,
        cpu=r"a\x1b[31mred\u202e",
        temperature_c=61.0,
        gpus=(GpuFacts(name="one"), *[GpuFacts()] * (MAX_GPUS - 1)),
    )
