"""``docs/backpressure.md`` says what the code does: its numbers are the constants."""

from __future__ import annotations

from pathlib import Path

from paddler_trio.agent.children import engine_process
from paddler_trio.agent.children.preparation import RENDERED_PLACES, REQUEST_PLACES
from paddler_trio.agent.link import balancer_link, link_reply
from paddler_trio.agent.link.link_reply import MAX_HANDSHAKE_BYTES
from paddler_trio.agent.model import cache_tasks
from paddler_trio.agent.model.fit_tasks import MAX_FIT_QUESTIONS
from paddler_trio.agent.requests import embedding_requests as embedding
from paddler_trio.agent.requests.question_tasks import MAX_QUESTIONS
from paddler_trio.agent.servers import tunnel_dial
from paddler_trio.agent.servers.tunnel_dial import MAX_HELD_BYTES
from paddler_trio.balancer.activity import captures, event_feed, request_routes
from paddler_trio.balancer.activity.agent_history import MAX_EVENTS
from paddler_trio.balancer.activity.feed_document import MAX_DIFF_KEYS, MAX_DIFFS
from paddler_trio.balancer.activity.finished_requests import MAX_FINISHED
from paddler_trio.balancer.activity.request_record import MAX_MARKS
from paddler_trio.balancer.agents import ask_model, embedding_fan_out
from paddler_trio.balancer.apis import api_exchange
from paddler_trio.balancer.apis.answers import answer, kept_logprobs
from paddler_trio.balancer.apis.generation_fields import (
    MAX_METADATA,
    MAX_METADATA_CHARS,
    MAX_MODEL_CHARS,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server import rerank
from paddler_trio.balancer.apis.openai import completion_request, embeddings
from paddler_trio.balancer.apis.responses import response_output
from paddler_trio.balancer.fleet import model_store_child, shared_view
from paddler_trio.balancer.fleet.fleet_database import MAX_FLEET_FILE_BYTES
from paddler_trio.balancer.fleet.stored_fleet import MAX_HISTORY
from paddler_trio.balancer.front import (
    api_v2,
    cache_routes,
    inference_socket,
    login_limit,
    status_limits,
)
from paddler_trio.balancer.joining import join_exchange
from paddler_trio.balancer.joining.stored_agents import MAX_CREDENTIALS, MAX_TOKENS
from paddler_trio.balancer.reverse_proxy import (
    forwarding,
    server_pools,
    slot_paths,
    tunnel_exchange,
)
from paddler_trio.models.download.partial_file import BLOCK_BYTES
from paddler_trio.models.download.transfer import SPACE_BLOCKS, TransferLimits
from paddler_trio.models.hub import hub_lookup
from paddler_trio.net.server import asgi, connection, json_body
from paddler_trio.net.server import input_budget as budget
from paddler_trio.net.server.app_tasks import HTTP_INBOX_BYTES
from paddler_trio.net.server.asgi import BODY_DEADLINE_S
from paddler_trio.net.server.connection import PORTION_LINES, RECEIVE_BYTES
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.websocket import bounded_websocket
from paddler_trio.net.websocket.bounded_websocket import (
    FREE_FRAGMENTS,
    LEAST_FRAGMENT_BYTES,
    MESSAGE_DEADLINE_S,
)
from paddler_trio.nursery_tree.agent_connection import OUTGOING_FRAMES, TUNNELS_BESIDE_SLOTS
from paddler_trio.nursery_tree.agent_questions import QUESTIONS_AT_ONCE, QUESTIONS_OF_ONE_CLIENT
from paddler_trio.nursery_tree.request import OUTBOX_STEPS
from paddler_trio.processes.engine.pipe import HELD_LOGPROBS, OUTBOX_FRAMES, OUTBOX_LOGPROBS
from paddler_trio.processes.model_store import arrival, store_connection, upload_file, upload_routes
from paddler_trio.processes.preparation.job_limits import (
    BASE_CPU_S,
    CPU_S_PER_MB,
    MAX_CPU_S,
    MEMORY_BYTES,
)
from paddler_trio.system.logs import log_ring, log_stream
from paddler_trio.system.loop_lag import STALL_S
from paddler_trio.system.ready_sockets import MANY_PIECES, MOST_BYTES, TURN_S
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.telemetry import line_writer, span_export
from paddler_trio.wire import json_limits, json_text
from paddler_trio.wire.engine.engine_settings import STREAM_INTERVAL_MS
from paddler_trio.wire.trio.fleet_state import MAX_DEPLOYMENTS
from paddler_trio.wire.trio.request_frame import (
    CONTINUATION_BYTES,
    MAX_PADDLER_WORK_BYTES,
    MAX_WORK_BYTES,
)
from paddler_trio.wire.trio.trio_link import MAX_ANSWER_BYTES, MAX_FRAME_BYTES

PAGE, _, OUTGOING = (
    (Path(__file__).parents[2] / "docs" / "backpressure.md")
    .read_text()
    .partition("## The outgoing side")
)
KIB, MIB = 1024, 1024**2


def sizes() -> dict[str, str]:
    """The second column of the table by the first."""
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| ")]
    return {queue.strip(): size.strip() for queue, size in rows[1:]}


HAVE_NO_NUMBER = {
    "requests a server breaks on, between two looks at it",
    "results written past the outbox",
    "texts for one watcher of agents or of the buffer",
    "events for one of its watchers",
}
"""One, or what the kernel takes."""


def test_every_row_of_the_table_is_what_the_constants_say() -> None:
    config, limits, surface = BalancerConfig(), HttpLimits(), ApiLimits()
    counts = json_limits.DEFAULT_LIMITS
    assert config.max_connections == limits.max_connections
    assert config.input_memory_bytes == budget.DEFAULT_BYTES
    assert surface.max_json_values == counts.max_values
    assert surface.max_json_containers == counts.max_containers
    assert surface.max_body_bytes == api_v2.MAX_BODY_BYTES
    assert BODY_DEADLINE_S == MESSAGE_DEADLINE_S
    assert TransferLimits().workers == 4
    assert MAX_WORK_BYTES + CONTINUATION_BYTES == MAX_FRAME_BYTES
    expected = {
        "join tokens in force; credentials of agents": f"{MAX_TOKENS}; {MAX_CREDENTIALS}",
        "a body at `/api/v2/join`": (
            f"{join_exchange.MAX_BODY_BYTES // KIB} KiB in {join_exchange.BODY_S:.0f} s"
        ),
        "failures to join, or to sign in": (
            f"{login_limit.BURST} from one address, then one in {1 / login_limit.PER_S:.0f} s; "
            f"{login_limit.ALL_BURST} from all, then {login_limit.ALL_PER_S:.0f} a second"
        ),
        "sub-batches of one embedding call that were answered and not read": (
            f"{embedding_fan_out.MAX_UNREAD}, and those in slots"
        ),
        "text of an answer of `/v1/embeddings` or `/embedding` that its client has not read": (
            f"{api_exchange.PORTION_BYTES // KIB} KiB, and one vector"
        ),
        "id of a request on an inference WebSocket, which every token of its answer repeats": (
            f"{inference_socket.MAX_ID_CHARS} characters"
        ),
        "connections per port": f"`--max-connections` ({config.max_connections})",
        "slots that WebSockets to servers hold, while a request waits for one": (
            f"all; 1 given up in {slot_paths.PATIENCE_S:.0f} s"
        ),
        "bytes held of all requests and messages of the balancer": (
            f"`--input-memory` ({config.input_memory_bytes // MIB} MiB); "
            f"clients may spend {budget.PUBLIC_SHARE * 100:.0f} % of it"
        ),
        "fragments of a WebSocket message": (
            f"{FREE_FRAGMENTS}, and one more for every {LEAST_FRAGMENT_BYTES} bytes"
        ),
        "of one request or message, not counted in it": (
            f"the first {budget.FREE_BYTES // KIB} KiB"
        ),
        "request body": (
            f"{json_body.MAX_JSON_BODY_BYTES // MIB} MiB on Paddler's routes and for operators, "
            f"{api_v2.MAX_BODY_BYTES // MIB} MiB on ours, "
            f"{forwarding.MAX_BODY_BYTES // MIB} MiB for a server behind an agent"
        ),
        "WebSockets beside the slots of a server behind an agent": (
            f"{tunnel_exchange.MAX_WEBSOCKETS}"
        ),
        "bytes from the client of a WebSocket that goes on to a server": (
            f"{asgi.AHEAD_BYTES // KIB} KiB and one read of {RECEIVE_BYTES // KIB} KiB"
        ),
        "requests that take no slot of a server behind an agent": f"{TUNNELS_BESIDE_SLOTS}",
        "pieces of an answer that come in one read": f"{MANY_PIECES}",
        "ends of lines in one read of a connection, as in chunks of one byte": f"{PORTION_LINES}",
        "time for reads of many sockets in one turn": f"{TURN_S * 1000:g} ms",
        "tunnels to a server behind an agent": (f"twice its slots, and {TUNNELS_BESIDE_SLOTS}"),
        "bytes of a request in a tunnel that its server has not taken": (
            f"{tunnel_dial.AHEAD_BYTES // KIB} KiB and one read of "
            f"{tunnel_dial.RECEIVE_BYTES // KIB} KiB at the agent"
        ),
        "beginnings of requests remembered for servers": (
            f"{server_pools.MAX_BEGINNINGS:,}, of 16 bytes"
        ),
        "bytes out of one compressed byte": (
            f"{json_body.MAX_INFLATION}, beyond the first "
            f"{json_body.FREE_INFLATED_BYTES // MIB} MiB"
        ),
        "WebSocket message": f"{limits.max_websocket_message_bytes // MIB} MiB",
        "JSON in one body or message": (
            f"{counts.max_values:,} values, {counts.max_containers:,} objects and arrays"
        ),
        "nesting of JSON": (f"{json_text.MAX_DEPTH} levels, {surface.max_nesting} on the APIs"),
        "time for one body or message": (
            f"{BODY_DEADLINE_S:g} s; beyond {budget.FREE_BYTES // KIB} KiB also "
            f"{budget.MIN_PROGRESS_BYTES // KIB} KiB in every {budget.MIN_PROGRESS_INTERVAL_S:g} s"
        ),
        "body bytes that a route has not read": f"{HTTP_INBOX_BYTES // KIB} KiB",
        f"threads that decode what is over {budget.INLINE_BYTES // KIB} KiB": (
            "1 for clients, 1 for operators and agents"
        ),
        "requests waiting for a slot of one deployment": (
            f"`--max-buffered-requests` ({config.max_buffered_requests})"
        ),
        "requests whose spans wait to be sent (`--otlp-endpoint`)": (
            f"{span_export.MAX_WAITING}, and {span_export.BATCH} that are being sent"
        ),
        "lines of the access log that wait to be written": (
            f"{line_writer.MAX_WAITING}, and as many that are being written"
        ),
        "lines of the log that wait for standard error, which is not read": (
            f"{log_stream.MAX_WAITING_BYTES // MIB} MiB, and as many that are being written"
        ),
        "sub-batches of one embedding call that wait": "1",
        "requests on one inference WebSocket": f"{inference_socket.MAX_REQUESTS_PER_SOCKET}",
        "steps in a request's outbox": f"{OUTBOX_STEPS}",
        "request as an agent of ours is sent it": (
            f"{MAX_WORK_BYTES // MIB} MiB, and {CONTINUATION_BYTES // MIB} MiB for tokens to go on "
            "after"
        ),
        "answer to a question about the model (tokens, their text, a rendered prompt)": (
            f"{MAX_ANSWER_BYTES // MIB} MiB"
        ),
        "request as an agent of Paddler's is sent it": (
            f"16 MiB less {(16 * MIB - MAX_PADDLER_WORK_BYTES) // KIB} KiB"
        ),
        "frames towards one agent": f"{OUTGOING_FRAMES}",
        "frames from an agent to its balancer": f"{link_reply.OUTGOING_FRAMES}",
        "frames read ahead on the agent": f"{balancer_link.READ_AHEAD_FRAMES}",
        "frames towards the engine": f"{engine_process.TO_ENGINE_FRAMES}",
        "tokens of one embedding request in the engine": (
            f"less than two portions of {embedding.PORTION_TOKENS:,}, or one longer chunk"
        ),
        "steps from the engine": (
            f"{OUTBOX_FRAMES}, and {OUTBOX_LOGPROBS:,} log probabilities in them, then its pipe"
        ),
        "passes whose tokens wait in the engine to be delivered together": (
            f"{OUTBOX_FRAMES}, and {HELD_LOGPROBS} log probabilities, "
            f"for `--stream-interval-ms` ({STREAM_INTERVAL_MS:g})"
        ),
        "pieces of a server's stream that wait in its agent to be delivered together": (
            f"{MAX_HELD_BYTES // KIB} KiB, for `--stream-interval-ms` ({STREAM_INTERVAL_MS:g})"
        ),
        "requests being prepared on an agent": (
            f"{REQUEST_PLACES} worker processes, {REQUEST_PLACES // 2} of one client; "
            f"{RENDERED_PLACES} and {RENDERED_PLACES // 2} of these for what a template may render"
        ),
        "processor time of one preparation": (
            f"{BASE_CPU_S:g} s, and {CPU_S_PER_MB:g} s for each MB of the request, "
            f"{MAX_CPU_S:g} s at most"
        ),
        "memory of one preparation": (f"{MEMORY_BYTES // MIB} MiB beside what the fork server has"),
        "connections that the model store has": f"{model_store_child.MAX_PASSED}",
        "files on their way into the model store": (
            f"{arrival.MAX_ARRIVALS}, four requests each, of which "
            f"{SPACE_BLOCKS * BLOCK_BYTES // MIB} MiB wait to be written"
        ),
        "what a client of the model store must read": (
            f"{store_connection.PIECE_BYTES // KIB} KiB in {store_connection.WRITE_S:g} s"
        ),
        "revisions of the fleet": (
            f"{MAX_HISTORY} of at most {MAX_DEPLOYMENTS} deployments beside `default`, in a file "
            f"of {MAX_FLEET_FILE_BYTES // MIB} MiB"
        ),
        "questions of a balancer to an agent": (
            f"{QUESTIONS_AT_ONCE}, {QUESTIONS_OF_ONE_CLIENT} of one client"
        ),
        "questions to an agent": f"{MAX_QUESTIONS}, of which 2 are worked on",
        "questions to an agent whether a model fits": (
            f"{MAX_FIT_QUESTIONS}, of which 1 is worked on"
        ),
        "commands about the cache of an agent": (
            f"{cache_tasks.MAX_COMMANDS}, of which {cache_tasks.MAX_PULLS} fetch and "
            f"{cache_tasks.MAX_HASHING} hashes"
        ),
        "commands about caches on the balancer": (
            f"{cache_routes.MAX_STREAMS}, each for any number of agents"
        ),
        "progress of one command for one client": (
            f"the newest of each agent, {1 / cache_routes.LEAST_PAUSE_S:.0f} a second, and "
            f"{cache_routes.MAX_LINES_PER_S} a second of all"
        ),
        "uploads into the model store": f"{upload_routes.MAX_UPLOADS}, one for each file",
        "uploads that broke off": f"{upload_file.MAX_LEFT}, for a week",
        "bytes a client sends after a request that is still answered": (
            f"{budget.FREE_BYTES // KIB} KiB; up to {limits.max_read_ahead_bytes // MIB} MiB while "
            f"less than half of what clients may spend of `--input-memory` is held; then its "
            "kernel buffers"
        ),
        f"reads of less than {connection.SMALL_READ_BYTES} bytes on one connection": (
            f"{connection.SMALL_READS}, then {connection.SMALL_READS_PER_S:.0f} a second"
        ),
        f"pings, pongs and frames of less than {bounded_websocket.SMALL_FRAME_BYTES} bytes on one "
        "WebSocket": (
            f"{bounded_websocket.SMALL_FRAMES}, then {bounded_websocket.SMALL_FRAMES_PER_S:.0f} a "
            "second"
        ),
        "messages of an agent that are handled at once": f"{bounded_websocket.MESSAGES_AT_ONCE}",
        "records of requests that ended": (
            f"{MAX_FINISHED:,}, about 1 KiB each; of agents' events {MAX_EVENTS:,}"
        ),
        "marks and positions in a record": f"{MAX_MARKS} each",
        "captured prompts and answers (`--capture-prompts`)": (
            f"{captures.MAX_TOTAL_BYTES // MIB} MiB, {captures.MAX_BYTES // KIB} KiB of each"
        ),
        "bytes of an answer in a tunnel": (
            f"what the kernel's buffers hold; one read of {MOST_BYTES // KIB} KiB in each process"
        ),
        "bytes to all watchers of one view": (
            f"{shared_view.WATCHERS_BYTES_A_SECOND // MIB} MiB a second, or one text a second"
        ),
        "streams of the event feed": f"{event_feed.MAX_WATCHERS}",
        "diffs that the feed remembers": f"{MAX_DIFFS}, of at most {MAX_DIFF_KEYS:,} keys",
        "bytes of the feed to all watchers together": (
            f"{event_feed.WATCHERS_BYTES_A_SECOND // MIB} MiB a second, or one event in two "
            f"seconds; looks take {event_feed.LOOKING_SHARE * 100:.0f} % of a core, or one is made "
            "in five seconds"
        ),
        "warnings and errors kept for operators": f"{log_ring.MAX_RECORDS}, of at most 8 KB",
        "what one agent says of itself": (
            f"{status_limits.MAX_ISSUES} issues, {status_limits.MAX_ISSUES_CHARS // MIB} MiB of "
            f"texts, {status_limits.MAX_SLOTS} slots"
        ),
        "bytes before an agent's link is agreed on": f"{MAX_HANDSHAKE_BYTES // KIB} KiB",
        "lookups of repositories at the hub": (
            f"{hub_lookup.MAX_AT_ONCE}, each of a listing of at most "
            f"{hub_lookup.MAX_LISTING_BYTES // MIB} MiB; {hub_lookup.MAX_KEPT} answers are kept"
        ),
    }
    told = sizes()
    for queue, size in expected.items():
        assert told[queue] == size, queue
    assert budget.AHEAD_SHARE == 0.5
    assert tunnel_dial.RECEIVE_BYTES == MOST_BYTES
    assert (shared_view.LONGEST_PAUSE_S, event_feed.LONGEST_PAUSE_S) == (1, 2)
    assert event_feed.LONGEST_LOOKING_PAUSE_S == 5
    assert told.keys() - expected.keys() == HAVE_NO_NUMBER


def test_the_arithmetic_is_right() -> None:
    page = " ".join(PAGE.split())
    values, containers = json_limits.VALUE_BYTES, json_limits.CONTAINER_BYTES
    assert f"({values} bytes a value, {containers} an object or array)" in page
    public_bytes = budget.DEFAULT_BYTES * budget.PUBLIC_SHARE
    assert f"by default {public_bytes // (2 * MIB):.0f} of them" in page
    assert public_bytes // (2 * 20 * MIB) == 4
    assert "with images of 20 MiB, four" in page
    header_bytes = HttpLimits().max_header_bytes
    each_kib = 20 + (RECEIVE_BYTES + header_bytes + budget.FREE_BYTES) // KIB
    assert f"64 KiB read at once, 16 KiB of headers and these make {each_kib} KiB" in page
    connections = BalancerConfig().max_connections
    assert f"{each_kib * connections // KIB} MiB for a port with all its {connections}" in page
    assert f"({json_limits.SLICE_BYTES // KIB} KiB each)" in page
    assert f"({json_text.RUN_VALUES:,} scalars, {json_text.RUN_CHARS:,} characters)" in page
    assert f"more than {STALL_S * 1000:.0f} ms is logged" in page


def test_a_short_text_cannot_hold_many_values() -> None:
    assert json_limits.UNCOUNTED_BYTES // 3 == 5_461
    assert json_limits.UNCOUNTED_BYTES <= budget.FREE_BYTES <= budget.INLINE_BYTES


def test_the_outgoing_side_says_what_the_constants_say() -> None:
    limits = ApiLimits()
    most = limits.max_answer_bytes
    number, item = kept_logprobs.NUMBER_BYTES, ask_model.ITEM_BYTES
    repeated = number + response_output.REPEATED_BYTES
    page = " ".join(OUTGOING.split())
    rows = [line for line in OUTGOING.splitlines() if line.startswith("| ")][1:]
    told = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in rows}
    assert len(told) == 17
    for numbers in (
        f"{api_exchange.PORTION_BYTES // KIB} KiB at a time",
        f"{limits.max_prompts:,} answers, {limits.max_choices} of one prompt",
        (
            f"{limits.max_logprobs:,} log probabilities of {number} bytes, "
            f"{limits.max_logprobs * number // MIB} MiB"
        ),
        f"{most // MIB} MiB: {most // (101 * number + 4) // 1000},000 tokens with 100 alternatives",
        f"{most // MIB} MiB, {answer.text_bytes('a')} bytes a character at most",
        f"{completion_request.MAX_SUFFIX_CHARS:,} characters together",
        f"{repeated} bytes each: {most // (21 * repeated) // 100 * 100:,} tokens with 20",
        (
            f"4 bytes a number and {embeddings.VECTOR_BYTES} a vector: {limits.max_prompts:,} "
            f"vectors of {(most // limits.max_prompts - embeddings.VECTOR_BYTES) // 4:,} numbers"
        ),
        (
            f"{limits.max_prompts:,} scores of {rerank.SCORE_BYTES} bytes, "
            f"{limits.max_prompts * rerank.SCORE_BYTES // KIB} KiB"
        ),
        f"{most // MIB} MiB: {item} bytes an item of a list",
        f"{MAX_MODEL_CHARS} characters an event",
        f"{MAX_METADATA} pairs of at most {MAX_METADATA_CHARS} characters",
        f"{REQUEST_PLACES // 2} at once, each of at most {MAX_CPU_S:g} s",
        f"{limits.max_stored_bytes // MIB} MiB in all, {limits.max_stored_responses:,} responses",
        (
            f"{MAX_MARKS} marks and positions each; a file has at most "
            f"{request_routes.MAX_EXPORT:,} lines, {request_routes.PIECE} made at a time"
        ),
    ):
        assert numbers in page, numbers
    assert f"{MAX_FINISHED:,} records" in page
    assert answer.MAX_REPEATED_CHARS == completion_request.MAX_SUFFIX_CHARS == MIB
