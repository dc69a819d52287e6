"""Our own frames, on the engine's pipe and on the link: round trips, and refusals in words."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import loads
from paddler_trio.wire.engine import engine_pipe, pipe_codec
from paddler_trio.wire.paddler.desired_state import UrlModel
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.trio import cache_commands, fit_messages, trio_link
from paddler_trio.wire.trio.work import Generate, Rank, TokenPrompt

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=50)
texts = st.text(max_size=40)
samplings = st.builds(
    engine_pipe.Sampling,
    temperature=st.floats(-1, 5),
    top_k=st.integers(-1, 1000),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    penalty_last_n=st.integers(-1, 4096),
    penalty_repeat=st.floats(0, 2),
    penalty_frequency=st.floats(0, 2),
    penalty_presence=st.floats(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
to_engine = st.one_of(
    st.builds(
        engine_pipe.StartSequence,
        key=st.integers(0, 2**40),
        tokens=tokens,
        sampled=tokens,
        max_tokens=st.integers(1, 2**31 - 1),
        sampling=samplings,
        grammar=st.none() | st.builds(engine_pipe.Grammar, lark=texts, trigger_tokens=tokens),
    ),
    st.builds(engine_pipe.StopSequence, key=st.integers(0, 2**40)),
    st.builds(
        engine_pipe.EmbedDocuments,
        key=st.integers(0, 2**40),
        documents=st.lists(st.binary(max_size=40), max_size=8),
    ),
    st.builds(engine_pipe.StopEmbedding, key=st.integers(0, 2**40)),
)
from_engine = st.one_of(
    st.builds(
        engine_pipe.EmbeddingStep,
        embedded=st.lists(
            st.builds(
                engine_pipe.Embedded,
                key=st.integers(0, 2**40),
                index=st.integers(0, 10**6),
                values=st.binary(max_size=40),
                problem=texts,
            ),
            max_size=8,
        ),
    ),
    st.builds(
        engine_pipe.Ready,
        cells=st.integers(0, 2**31),
        n_batch=st.integers(1, 2**31),
        n_ctx_train=st.integers(0, 2**31),
        n_vocab=st.integers(1, 2**31),
        can_generate=st.booleans(),
        embedding=st.none()
        | st.builds(
            engine_pipe.EmbeddingShape,
            max_tokens=st.integers(1, 2**31),
            width=st.integers(1, 2**16),
            pooling=texts,
        ),
        embedding_problem=texts,
    ),
    st.builds(engine_pipe.Loading, progress=st.floats(0, 1)),
    st.builds(engine_pipe.LoadFailed, stage=texts, reason=texts),
    st.builds(
        engine_pipe.Step,
        sampled=st.lists(
            st.builds(
                engine_pipe.SampledToken,
                key=st.integers(0, 2**40),
                token=st.integers(0, 2**31 - 1),
                text=st.binary(max_size=12),
            ),
            max_size=8,
        ),
        endings=st.lists(
            st.builds(
                engine_pipe.Ending,
                key=st.integers(0, 2**40),
                reason=texts,
                num_prompt_tokens=st.integers(0, 10**6),
                num_cached_tokens=st.integers(0, 10**6),
                detail=texts,
            ),
            max_size=8,
        ),
    ),
)


@given(to_engine)
def test_frames_to_the_engine_survive_the_pipe(frame: engine_pipe.ToEngine) -> None:
    data = pipe_codec.encode(frame)
    assert pipe_codec.body_length(data[: pipe_codec.LENGTH_BYTES]) == len(data) - 4
    assert pipe_codec.decode_to_engine(data[pipe_codec.LENGTH_BYTES :]) == frame


@given(from_engine)
def test_frames_from_the_engine_survive_the_pipe(frame: engine_pipe.FromEngine) -> None:
    data = pipe_codec.encode(frame)
    assert pipe_codec.decode_from_engine(data[pipe_codec.LENGTH_BYTES :]) == frame


@given(st.binary(max_size=200))
def test_garbage_on_the_pipe_is_a_wire_error_and_nothing_else(garbage: bytes) -> None:
    for decode in (pipe_codec.decode_to_engine, pipe_codec.decode_from_engine):
        with pytest.raises(WireError):
            decode(garbage)


def test_a_length_that_no_frame_has_is_refused() -> None:
    with pytest.raises(WireError, match="4294967295 bytes; the limit is"):
        pipe_codec.body_length(b"\xff\xff\xff\xff")


sources = st.lists(texts.filter(lambda text: len(text) > 0 and "\0" not in text), max_size=3).map(
    tuple
)
deployments = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)
labels = st.from_regex(r"[A-Za-z0-9._/-]{1,63}", fullmatch=True)
extensions = st.one_of(
    st.builds(
        trio_link.Start,
        id=texts,
        request=st.sampled_from(
            [
                ContinueFromRawPromptParams("a", 3),
                Generate(prompt=TokenPrompt(tokens=(1,)), stop=("END",)),
                Rank(query="a", documents=("b",)),
            ]
        ),
        seed=st.integers(0, 2**32 - 1),
        tokens=tokens.map(tuple),
        isolated=st.sampled_from([None, "engine", "agent"]),
    ),
    st.builds(
        trio_link.Report,
        phase=texts,
        wanted_state=st.none() | texts,
        served_state=st.none() | texts,
        model=st.none() | texts,
        progress=st.none() | st.sampled_from([0.0, 0.25, 1.0]),
        detail=st.none() | texts,
        load_s=st.none() | st.sampled_from([0.0, 0.25, 61.5]),
        room=st.lists(
            st.builds(fit_messages.DeviceRoom, device=texts, most=st.integers(0, 2**64 - 1)),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        trio_link.Placement,
        host=st.from_regex(r"[A-Za-z0-9_-]{1,22}", fullmatch=True),
        deployment=deployments,
        labels=st.dictionaries(labels, labels, max_size=3),
    ),
    st.builds(
        trio_link.Instances,
        instances=st.lists(
            st.builds(
                trio_link.InstanceWanted,
                deployment=deployments.filter(lambda name: name != "default"),
                slots=st.none() | st.integers(1, 4096),
            ),
            max_size=4,
            unique_by=lambda each: each.deployment,
        ).map(tuple),
    ),
    st.builds(
        trio_link.HandBack,
        id=texts,
        reason=texts,
        engine_died=st.booleans(),
        suspects=st.none() | st.integers(0, 2**32 - 1),
    ),
    st.builds(trio_link.GetTree, id=texts),
    st.just(trio_link.Store("/api/v2/store")),
    st.builds(
        trio_link.Cache,
        id=texts,
        request=st.one_of(
            st.just(cache_commands.ListCache()),
            st.just(cache_commands.Pull(models=(UrlModel("https://host/m.gguf"),))),
            st.builds(cache_commands.Verify, sources=sources),
            st.builds(
                cache_commands.Prune,
                sources=sources,
                newest=st.integers(0, 2**32 - 1),
                used_within_s=st.none() | st.integers(0, 2**40),
                dry_run=st.booleans(),
            ),
        ),
    ),
    st.builds(
        cache_commands.CacheProgress,
        id=texts,
        phase=texts,
        source=texts,
        filename=texts,
        current_bytes=st.integers(0, 2**64 - 1),
        total_bytes=st.none() | st.integers(0, 2**64 - 1),
        remaining_s=st.none() | st.integers(0, 2**32 - 1),
    ),
)


@given(extensions)
def test_extensions_survive_the_link(message: trio_link.Extension) -> None:
    frame = loads(trio_link.render_extension(message))
    assert isinstance(frame, dict)
    assert trio_link.parse_extension(frame["Trio"]) == message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"HandBack": "x"}, "an object"),
        ({"HandBack": {"id": "1", "reason": "x"}}, "engine_died"),
        ({"HandBack": {"id": 1, "reason": "x", "engine_died": True}}, "HandBack.id"),
        ({"GetTree": {"id": "1", "more": 2}}, "more"),
        ({"Cache": {"id": "1", "request": {"Prune": {}}}}, "says what to keep"),
        ({"Cache": {"id": "1", "request": {"Pull": {"models": ["None"]}}}}, "not fetched"),
        ({"Cache": {"id": "1", "request": {"Verify": {"sources": [""]}}}}, r"sources\[0\]"),
        (
            {"Placement": {"host": "h", "deployment": "A"}},
            r"of a deployment.* @ \$.Placement.deployment",
        ),
        ({"Placement": {"host": "a b", "deployment": "a"}}, r"agent @ \$.Placement.host"),
        (
            {"Placement": {"host": "h", "deployment": "a", "labels": {"gpu": "ja!"}}},
            r"'ja!' cannot stand in a label.* @ \$.Placement.labels.gpu",
        ),
        (
            {"Placement": {"host": "h", "deployment": "a", "labels": {"": "yes"}}},
            "'' cannot stand in a label",
        ),
        (
            {
                "Placement": {
                    "host": "h",
                    "deployment": "a",
                    "labels": {str(n): "" for n in range(33)},
                }
            },
            "33 labels, the limit is 32",
        ),
        ({"Instances": {"instances": [{"deployment": "a" * 64}]}}, r"instances\[0\].deployment"),
        ({"Instances": {"instances": [{"deployment": "default"}]}}, "first link"),
        ({"Instances": {"instances": [{"deployment": "a", "slots": 0}]}}, "0 slots, must be 1"),
        (
            {"Instances": {"instances": [{"deployment": "a", "slots": 4097}]}},
            r"4097 slots, .* @ \$.Instances.instances\[0\].slots",
        ),
        (
            {"Instances": {"instances": [{"deployment": "a"}, {"deployment": "a"}]}},
            r"'a' is listed twice @ \$.Instances.instances\[1\]",
        ),
        (
            {"Instances": {"instances": [{"deployment": f"a{n}"} for n in range(65)]}},
            "65 instances, the limit is 64",
        ),
        ([], "expected"),
    ],
)
def test_what_is_no_extension_is_refused_with_its_place(body: object, words: str) -> None:
    with pytest.raises(WireError, match=words):
        trio_link.parse_extension(body)


@pytest.mark.parametrize("body", ["Novelty", {"Novelty": {}}, {"Novelty": [1]}])
def test_what_only_a_newer_peer_knows_is_told_apart_from_what_is_broken(body: object) -> None:
    assert trio_link.parse_extension(body) == trio_link.UnknownExtension("Novelty")


def test_the_id_of_a_broken_frame_is_recovered_where_there_is_one() -> None:
    assert trio_link.recover_extension_id({"Trio": {"Start": {"id": "7", "seed": -1}}}) == "7"
    assert trio_link.recover_extension_id({"Trio": {"Start": {}}}) is None
    assert trio_link.recover_extension_id({"Trio": 3}) is None
    assert trio_link.recover_extension_id(None) is None


def test_placement_and_instances_are_on_the_wire_as_documented() -> None:
    placement = trio_link.Placement(host="h1", deployment="coder", labels={"gpu": "yes"})
    assert loads(trio_link.render_extension(placement)) == {
        "Trio": {"Placement": {"host": "h1", "deployment": "coder", "labels": {"gpu": "yes"}}}
    }
    wanted = trio_link.Instances(
        instances=(
            trio_link.InstanceWanted(deployment="coder", slots=4),
            trio_link.InstanceWanted(deployment="chat"),
        )
    )
    assert loads(trio_link.render_extension(wanted)) == {
        "Trio": {
            "Instances": {
                "instances": [
                    {"deployment": "coder", "slots": 4},
                    {"deployment": "chat", "slots": None},
                ]
            }
        }
    }


def test_a_report_without_the_newer_fields_is_read_and_written_as_before() -> None:
    body = {
        "phase": "serving",
        "wanted_state": None,
        "served_state": None,
        "model": None,
        "progress": None,
        "detail": None,
        "engine": None,
    }
    report = trio_link.parse_extension({"Report": body})
    assert isinstance(report, trio_link.Report)
    assert (report.load_s, report.room) == (None, ())
    assert loads(trio_link.render_extension(report)) == {"Trio": {"Report": body}}


def test_every_frame_is_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        trio_link.GetTree("1").id = "2"  # type: ignore[misc]


@pytest.mark.parametrize(
    "path", ["", "/", "api/v2", "/../x y", "//host/x", "/a" * 9, "/" + "x" * 65]
)
def test_a_store_is_at_a_plain_path_of_the_balancer(path: str) -> None:
    with pytest.raises(WireError, match="is not a path"):
        trio_link.parse_extension({"Store": {"path": path}})
