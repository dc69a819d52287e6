"""The tests of connections once more, over TLS: it changes nothing of what they show."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import test_http_server
import test_input_budget_sockets
from http_world import over_tls

HAVE_THEIR_OWN = {
    "test_clients_that_wait_are_accepted_several_in_a_turn_of_the_event_loop",  # before it, too
    "test_connections_over_the_cap_are_closed_at_once",  # before their handshake
    "test_without_descriptors_clients_wait_and_the_log_says_why_once",
}
NOT_OF_THE_CONNECTION = {
    "test_a_flood_of_small_frames_closes_with_1008",
    "test_a_name_with_several_addresses_listens_on_one_port",
    "test_inflation_is_bounded_by_a_ratio_beyond_the_first_mebibyte",
    "test_values_are_counted_as_what_they_take",
    "test_what_an_over_long_message_goes_on_sending_is_not_kept",
}
"""Slow, and about what is parsed."""
DECIDED_BEFORE_TLS = {
    "test_a_trusted_proxy_gives_up_no_connection",
    "test_who_has_most_connections_gives_one_up_for_a_newcomer",
}
"""Who may stay is decided before a handshake: a client that may not never gets as far as TLS."""
LEFT_OUT = HAVE_THEIR_OWN | NOT_OF_THE_CONNECTION | DECIDED_BEFORE_TLS

FIXTURE = type(pytest.fixture(lambda: None))

for module in (test_http_server, test_input_budget_sockets):
    for name, found in vars(module).items():
        is_test = name.startswith("test_") and inspect.iscoroutinefunction(found)
        if isinstance(found, FIXTURE) or (is_test and name not in LEFT_OUT):
            globals()[name] = found


@pytest.fixture(scope="module", autouse=True)
def _over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with over_tls(tmp_path_factory.mktemp("certificates")):
        yield
