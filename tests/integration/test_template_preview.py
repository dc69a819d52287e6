"""A template is tried on a running agent, and nothing of the fleet changes."""

from __future__ import annotations

import httpx
from fleet import Fleet

from no_tls import NO_TLS

HELLO = [{"role": "user", "content": "Hello!"}]
TRIED = "{% for m in messages %}\n[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def preview(fleet: Fleet, **body: object) -> httpx.Response:
    return httpx.post(
        f"{fleet.management_url}/api/v2/template/preview",
        json={"messages": HELLO, **body},
        trust_env=False,
        verify=NO_TLS,
        timeout=60,
    )


def rendered(fleet: Fleet) -> object:
    """What a request gets now."""
    answer = httpx.post(
        f"{fleet.inference_url}/api/v2/render_prompt",
        json={"prompt": {"Conversation": {"messages": HELLO}}},
        trust_env=False,
        verify=NO_TLS,
        timeout=60,
    )
    return answer.raise_for_status().json()


def test_a_template_is_tried_without_being_stored(shared_fleet: Fleet) -> None:
    before = rendered(shared_fleet)
    assert preview(shared_fleet).json() == before
    assert preview(shared_fleet, chat_template=None, tools=None, thinking=None).json() == before
    tried = preview(shared_fleet, chat_template=TRIED)
    assert tried.status_code == 200
    assert tried.json()["prompt"] == "[user] Hello!\n"
    assert rendered(shared_fleet) == before


def test_a_broken_template_has_a_line_and_a_reason_and_harms_nobody(shared_fleet: Fleet) -> None:
    broken = preview(shared_fleet, chat_template="a\nb\n{% for m in messages %}")
    assert broken.status_code == 400
    assert broken.json()["line"] == 3
    assert "line 3: Unexpected end of template" in broken.json()["error"]
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    refused = preview(shared_fleet, chat_template=endless)
    assert refused.status_code == 400
    assert "time than one request may" in refused.json()["error"]
    assert preview(shared_fleet).status_code == 200
