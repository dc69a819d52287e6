"""The tests of connections once more, over TLS: it changes nothing of what they show."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import test_http_server
import test_input_budget_sockets
from http_world import over_tls

HAVE_THEIR_OWN = {
    "test_connections_over_the_cap_are_closed_at_once",  # before their handshake
}

FIXTURE = type(pytest.fixture(lambda: None))

for module in (test_http_server, test_input_budget_sockets):
    for name, found in vars(module).items():
        is_test = name.startswith("test_") and inspect.iscoroutinefunction(found)
        if isinstance(found, FIXTURE) or (is_test and name not in HAVE_THEIR_OWN):
            globals()[name] = found


@pytest.fixture(scope="module", autouse=True)
def _over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with over_tls(tmp_path_factory.mktemp("certificates")):
        yield
