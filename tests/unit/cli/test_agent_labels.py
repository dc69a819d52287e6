"""Labels of an agent on the command line: what is taken, and what is refused in words."""

from __future__ import annotations

import pytest

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import parse_labels
from paddler_trio.system.settings.agent_config import AgentConfig


def test_labels_are_keys_with_values() -> None:
    assert parse_labels(["gpu=yes", "site=attic/2", "gpu=yes"]) == {"gpu": "yes", "site": "attic/2"}
    assert parse_labels([]) == {}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["gpu"], "'gpu' is not a label: write KEY=VALUE"),
        (["gpu="], "'' cannot stand in a label: 1 to 63 of"),
        (["=yes"], "'' cannot stand in a label"),
        (["gpu=a=b"], "'a=b' cannot stand in a label"),
        (["gpu=" + "x" * 64], "cannot stand in a label"),
        (["gpu=ja!"], "'ja!' cannot stand in a label"),
        (["gpu=yes", "gpu=no"], "the label 'gpu' is given twice"),
        ([f"k{number}=v" for number in range(33)], "33 labels, the limit is 32"),
    ],
)
def test_what_is_no_label_is_refused_in_words(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_labels(texts)


def test_a_configuration_checks_its_labels() -> None:
    with pytest.raises(ConfigurationError, match="cannot stand in a label"):
        AgentConfig(management_host="h", management_port=1, slots=1, labels={"gpu": "ü"})
