"""A stamp that changes with each request costs no prefix, unless the operator wants it so."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fleet import Fleet

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

RULES = "Follow these. " + " ".join(f"point{number}" for number in range(150))


def body(stamp: str) -> dict[str, Any]:
    header = f"x-anthropic-billing-header: cc_version=2.2.0.abc; cc_entrypoint=cli; cch={stamp};"
    return {
        "max_tokens": 2,
        "system": [{"type": "text", "text": header}, {"type": "text", "text": RULES}],
        "messages": [{"role": "user", "content": "hey"}],
    }


@pytest.mark.parametrize("is_on", [True, False])
def test_the_third_request_finds_the_prefix_of_the_second(is_on: bool) -> None:
    options = [] if is_on else ["--no-normalise-prompts"]
    with Fleet.start(agents=1, slots=1, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, temperature=0.0)
        fleet.wait_serving()
        read, counted = [], []
        for stamp in ("aaaaa", "aaaaa", "bbbbb"):
            asked = body(stamp)
            told = httpx.post(
                f"{fleet.inference_url}/v1/messages", json=asked, trust_env=False, timeout=60
            ).json()["usage"]
            read.append(told["cache_read_input_tokens"])
            del asked["max_tokens"]
            count = httpx.post(
                f"{fleet.inference_url}/v1/messages/count_tokens", json=asked, trust_env=False
            ).json()["input_tokens"]
            counted.append(count == told["input_tokens"] + told["cache_read_input_tokens"])
        assert all(counted)
        assert (read[2] >= 0.8 * read[1]) is is_on, read
