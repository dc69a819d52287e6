"""Where spans go, what is wrong with an endpoint, and that nothing is imported without one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import paddler_trio
from paddler_trio.errors import ConfigurationError
from paddler_trio.telemetry.otlp_exporter import open_exporter, traces_url

PACKAGE = Path(paddler_trio.__file__).parent


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("http://tempo/otlp/v1/traces", "http://tempo/otlp/v1/traces"),
    ],
)
def test_a_collector_is_named_by_its_url(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("127.0.0.1:4318", "must be a URL such as"),
        ("ftp://collector", "must be a URL such as"),
        ("http://", "must be a URL such as"),
        ("http://collector:99999", "Port out of range"),
        ("http://[::1", "not a URL"),
        ("http://collector:4317", "the port of OTLP over gRPC"),
        ("http://me:secret@collector", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector?token=secret", "OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_another_endpoint_is_refused_with_advice_and_without_its_secret(
    endpoint: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        traces_url(endpoint)
    assert problem in str(caught.value)
    assert "--otlp-endpoint" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'paddler-trio\[tracing\]'"):
        open_exporter("http://127.0.0.1:4318", service="s", instance="i")


def test_nothing_of_it_is_imported_before_it_is_asked_for() -> None:
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"^(from|import) opentelemetry", file.read_text(), re.MULTILINE), file
