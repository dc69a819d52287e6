"""A template is tried on a running agent, and nothing of the fleet changes."""

from __future__ import annotations

import httpx
import pytest
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


BOMBS = {
    "a long text": "{{ 'a' * 10**10 }}",
    "many loops": "{% for a in range(10**9) %}x{% endfor %}",
    "itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "doubled": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "a large number": "{{ 9**(9**9) }}",
    "padded": "{{ '%9999999999d' % 1 }}",
    "a wide field": "{{ '{:>9999999999}'.format(1) }}",
    "joined": "{{ (['x' * 10000] * 10**6) | join }}",
    "indented": "{{ ('a\\n' * 10**5) | indent(10**6) }}",
    "many braces": "{" * 200_000,
    "deep": "{% if x %}" * 5000 + "{% endif %}" * 5000,
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "internals": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "a file": "{% include '/etc/passwd' %}",
    "its own globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
}
"""Templates that are short to write and long to render, or that would be more than templates."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_is_a_bomb_is_refused_and_harms_nobody(
    shared_fleet: Fleet, name: str
) -> None:
    answer = preview(shared_fleet, chat_template=BOMBS[name])
    assert answer.status_code == 400, answer.text[:200]
    assert "root:" not in answer.text
    assert "uid=" not in answer.text
    assert preview(shared_fleet, chat_template=TRIED).json()["prompt"] == "[user] Hello!\n"
