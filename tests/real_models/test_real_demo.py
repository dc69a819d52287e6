"""``paddler-trio up --real-demo``: a trained model of the Python index answers."""

from __future__ import annotations

import httpx
from fleet import END_S
from side_by_side import require
from test_up import up
from trained_models import SMOLLM2


def test_the_real_demo_answers() -> None:
    require(SMOLLM2)
    with up("--real-demo") as (lines, url):
        assert "served by local" in "".join(lines)
        body = {"messages": [{"role": "user", "content": "Name the capital of France."}]}
        answer = httpx.post(
            f"{url}/chat/completions",
            json=body | {"temperature": 0, "max_tokens": 24},
            trust_env=False,
            timeout=END_S,
        )
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
