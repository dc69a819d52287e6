"""The Prompt page against a real fleet: conversations, tools, stopping, and what it does not do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fleet import Fleet
from playwright.sync_api import Browser, Route, expect
from prompting import CHAT, PIXEL, answer_with, answers, ask, bodies_of, drop
from rollouts import apply, current, deployment
from viewer import Viewer

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

OpenViewer = Callable[..., Viewer]
PANEL = "--web-admin-panel-addr=127.0.0.1:0"


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Two slots with room for answers that are long enough to be stopped."""
    with Fleet.start(agents=1, slots=2, model=None, balancer_options=[PANEL]) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=16384)
        fleet.wait_serving(1)
        yield fleet


@pytest.fixture
def prompt(viewer: Viewer, panel: str) -> Viewer:
    """Someone at the page, who asks for short answers."""
    viewer.open(panel, "prompt")
    expect(viewer.page.get_by_label("Your message")).to_be_enabled()
    viewer.page.get_by_label("Max tokens").fill("60")
    return viewer


def test_a_conversation_goes_on_and_each_answer_has_its_figures(prompt: Viewer) -> None:
    bodies = bodies_of(prompt)
    ask(prompt, "What is a cat?")
    expect(answers(prompt)).to_have_count(1)
    ask(prompt, "And a dog?")
    expect(answers(prompt)).to_have_count(2)
    roles = [message["role"] for message in bodies[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    figures = prompt.page.locator(".answer-figures").last
    either = re.compile("ending(complete|cut at max tokens)")  # as the dice fall
    for words in ("agenta1", "tokens", "tokens/s", "TTFT", "cached", either):
        expect(figures).to_contain_text(words)
    expect(figures).not_to_contain_text("n/a")
    figures.get_by_role("link", name="waterfall").click()
    prompt.page.wait_for_url("**/#/requests/*")
    prompt.go("prompt")
    expect(answers(prompt)).to_have_count(2)  # it is kept while other pages are shown
    prompt.page.get_by_label("Max tokens").fill("1")
    ask(prompt, "And a bird?")
    expect(figures).to_contain_text("endingcut at max tokens")


def test_asking_again_and_editing_make_branches(prompt: Viewer) -> None:
    ask(prompt, "What is a cat?")
    expect(answers(prompt)).to_have_count(1)
    prompt.page.get_by_role("button", name="Answer again").click()
    branch = prompt.page.get_by_role("group", name="Branch 2 of 2")
    expect(branch).to_be_visible()
    expect(answers(prompt)).to_have_count(1)
    prompt.page.get_by_role("button", name="Branch before").click()
    expect(prompt.page.get_by_role("group", name="Branch 1 of 2")).to_be_visible()
    prompt.page.get_by_role("button", name="Edit the message").click()
    prompt.page.get_by_label("Edited message").fill("What is a dog?")
    prompt.page.get_by_role("button", name="Send as a branch").click()
    expect(prompt.page.locator(".user-text")).to_have_text("What is a dog?")
    expect(answers(prompt)).to_have_count(1)
    prompt.page.get_by_role("button", name="Branch before").click()
    expect(prompt.page.locator(".user-text")).to_have_text("What is a cat?")


def test_stopping_frees_the_slot(prompt: Viewer, fleet: Fleet) -> None:
    page = prompt.page
    page.get_by_label("Max tokens").fill("4000")
    page.get_by_label("Never end by itself").check()
    with page.expect_request(CHAT) as sent:
        ask(prompt, "Tell me a story.")
    expect(answers(prompt, "streaming")).to_contain_text("tokens/s")
    page.get_by_role("button", name="Stop").click()
    expect(answers(prompt, "stopped")).to_contain_text("stopped by you")
    name = sent.value.headers["x-request-id"]
    ended = json.loads(fleet.balancer.wait_for_line(f'"request": "{name}"'))
    assert (ended["event"], ended["ending"]) == ("request ended", "stopped")
    assert 0 < ended["results"] < 4000
    fleet.wait_until(
        lambda view: view["agents"][0]["slots_processing"] == 0, what="the slot is free"
    )
    page.get_by_label("Never end by itself").uncheck()
    page.get_by_label("Max tokens").fill("20")
    ask(prompt, "And the end?")
    expect(answers(prompt)).to_have_count(1)


def test_a_request_that_waits_shows_its_place(prompt: Viewer, fleet: Fleet) -> None:
    agent = fleet.view()["agents"][0]["id"]
    url = f"{fleet.management_url}/api/v2/agents/{agent}/drain"
    httpx.post(url, trust_env=False, timeout=60).raise_for_status()
    ask(prompt, "Are you there?")
    expect(prompt.page.locator(".waiting")).to_contain_text("n the queue")
    httpx.delete(url, trust_env=False, timeout=60).raise_for_status()
    expect(answers(prompt)).to_have_count(1)


def test_a_tool_is_called_and_its_result_goes_back(prompt: Viewer) -> None:
    page, bodies = prompt.page, bodies_of(prompt)
    page.get_by_label("Thinking").select_option("off")
    page.get_by_label("Max tokens").fill("100")
    page.locator("summary", has_text="Tools").click()
    page.get_by_role("button", name="Add an example").click()
    schema = page.get_by_label("Arguments")
    whole = schema.input_value()
    schema.fill(whole.replace('"type"', "type", 1))
    expect(schema).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".tool-editor .field-error", has_text="line 2, column 3")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    schema.fill(whole)
    page.get_by_label("Choice").select_option("required")
    ask(prompt, "What is the weather in Paris?")
    expect(page.locator(".call header")).to_contain_text("get_weather")
    expect(page.locator(".call pre")).to_contain_text('"city"')
    page.get_by_label("Choice").select_option("none")
    page.get_by_label("Result of get_weather").fill("Sunny and 23 degrees")
    page.get_by_role("button", name="Send the result").click()
    expect(answers(prompt)).to_have_count(2)
    call, result = bodies[1]["messages"][1:]
    assert call["tool_calls"][0]["function"]["name"] == "get_weather"
    assert result == {
        "role": "tool",
        "tool_call_id": call["tool_calls"][0]["id"],
        "content": "Sunny and 23 degrees",
    }


def test_an_answer_of_a_schema_is_its_json(prompt: Viewer) -> None:
    page = prompt.page
    page.get_by_label("Thinking").select_option("off")
    page.locator("summary", has_text="Answer format").click()
    page.get_by_label("Format", exact=True).select_option("schema")
    page.get_by_label("JSON Schema").fill(
        json.dumps(
            {"type": "object", "properties": {"sky": {"enum": ["blue"]}}, "required": ["sky"]}
        )
    )
    ask(prompt, "Which colour has the sky?")
    code = page.locator(".md-code pre")
    expect(code).to_contain_text('"sky": "blue"')
    expect(page.get_by_role("button", name="Copy the code (json)")).to_be_visible()


def test_what_a_model_says_does_nothing(prompt: Viewer, panel: str) -> None:
    """Scripts, handlers, remote pictures and bad links are text, or links without a target."""
    page = prompt.page
    answer_with(
        prompt,
        "<script>window.hurt = 1</script>\n\n"
        '<img src="x" onerror="window.hurt = 2">\n\n'
        '<iframe srcdoc="<script>parent.hurt = 3</script>"></iframe>\n\n'
        "![seen](http://127.0.0.1:9/pixel.png)\n\n"
        "[bad](javascript:window.hurt=4) [data](data:text/html,hurt) "
        "[good](https://example.org/page)\n\n"
        '<a href="javascript:window.hurt=5" onclick="window.hurt=6">raw</a>\n\n'
        "<style>body{display:none}</style>\n\n"
        '```py"><img src=x onerror=window.hurt=7>\nprint(1)\n```\n',
    )
    ask(prompt, "Hurt me")
    expect(answers(prompt)).to_have_count(1)
    text = page.locator(".answer .md")
    expect(text).to_contain_text("<script>window.hurt = 1</script>")
    for forbidden in ("script", "img", "iframe", "style", "[onerror]", "[onclick]", "[style]"):
        assert text.locator(forbidden).count() == 0, forbidden
    for name in ("bad", "data"):
        link = text.locator("a", has_text=name)
        assert link.get_attribute("href") is None
        link.click()
    good = text.locator("a", has_text="good")
    assert good.get_attribute("href") == "https://example.org/page"
    assert good.get_attribute("target") == "_blank"
    assert "noopener" in str(good.get_attribute("rel"))
    picture = text.locator("a", has_text="picture: seen")
    assert picture.get_attribute("href") == "http://127.0.0.1:9/pixel.png"
    assert page.evaluate("window.hurt ?? 'unhurt'") == "unhurt"
    assert prompt.origins() == {panel.rstrip("/")}


def test_a_refusal_says_its_status_and_what_to_do(prompt: Viewer) -> None:
    prompt.expect_error(r"status of 400|404.*/api/v2/requests/")
    ask(prompt, "word " * 20_000)
    problem = answers(prompt, "failed").get_by_role("alert")
    expect(problem).to_contain_text("Refused with 400")
    expect(problem).to_contain_text("tokens")
    expect(problem).to_contain_text("raise context_size")
    assert prompt.page.evaluate("document.documentElement.scrollTop") == 0  # main scrolls alone
    prompt.page.get_by_label("Temperature", exact=True).fill("7")
    expect(prompt.page.get_by_label("Temperature", exact=True)).to_have_attribute(
        "aria-invalid", "true"
    )
    expect(
        prompt.page.get_by_text("temperature is 7, must be a number, 0 to 2").first
    ).to_be_visible()
    expect(prompt.page.get_by_role("button", name="Send")).to_be_disabled()


def test_pictures_are_sent_where_the_model_sees_and_refused_where_not(prompt: Viewer) -> None:
    page, bodies = prompt.page, bodies_of(prompt)
    file = {"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}
    drop(prompt)
    expect(page.locator(".composer-note")).to_contain_text("sees no pictures")

    def sees(route: Route) -> None:
        models = route.fetch().json()
        for model in models["models"]:
            model["capabilities"] = ["completion", "multimodal"]
        route.fulfill(json=models)

    page.route("**/inference/v1/models", sees)
    page.reload()
    expect(page.get_by_role("button", name="Picture", exact=True)).to_be_enabled()
    answer_with(prompt, "A pixel.")
    chooser = page.locator(".composer input[type=file]")
    chooser.set_input_files({**file, "name": "drawing.svg", "mimeType": "image/svg+xml"})
    expect(page.locator(".composer-note")).to_contain_text("drawing.svg is image/svg+xml")
    chooser.set_input_files(file)
    drop(prompt)
    expect(page.get_by_role("list", name="Pictures of the message").locator("img")).to_have_count(2)
    page.get_by_role("button", name="Remove pixel.png").first.click()
    ask(prompt, "What is it?")
    expect(answers(prompt)).to_have_count(1)
    image, text = bodies[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "What is it?"}


def test_two_sides_ask_two_deployments(prompt: Viewer, fleet: Fleet) -> None:
    page, bodies = prompt.page, bodies_of(prompt)
    page.get_by_role("button", name="Side by side").click()
    default = deployment(BUNDLED_MODEL, context_size=16384)
    apply(fleet, default, deployment(BUNDLED_MODEL, "coder"))
    try:
        page.get_by_label("Deployment of side B").select_option("coder")
        ask(prompt, "What is a cat?")
        expect(answers(prompt)).to_have_count(2)
        assert sorted(body["model"] for body in bodies) == ["coder", "default"]
        for name in ("Side A", "Side B"):
            side = page.get_by_role("region", name=name)
            expect(side.locator(".answer-figures")).to_contain_text("agenta1")
    finally:
        apply(fleet, default)
    expect(page.get_by_label("Deployment of side B")).to_have_value("default")


def test_two_sides_try_two_templates(prompt: Viewer) -> None:
    page = prompt.page
    page.get_by_role("button", name="Side by side").click()
    side = page.get_by_role("region", name="Side B")
    side.get_by_role("button", name="Try a template").click()
    prompt.expect_error("status of 400")
    template = page.get_by_label("Chat template")
    template.fill("{% for message in messages %}\n{{ message.content")
    page.get_by_role("button", name="Use it here").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("line")
    template.fill("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    page.get_by_role("button", name="Use it here").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    ask(prompt, "What is a dog?")
    expect(answers(prompt)).to_have_count(2)
    expect(side.get_by_text("template under trial", exact=True)).to_be_visible()
    expect(side.locator(".raw-text")).not_to_be_empty()
    side.get_by_role("button", name="curl / Python").click()
    expect(page.locator(".copy-text")).to_contain_text("/v1/completions")


def test_a_raw_prompt_is_continued(prompt: Viewer) -> None:
    page = prompt.page
    page.get_by_label("Raw").check(force=True)
    field = page.get_by_label("Prompt", exact=True)
    field.fill("Once upon a time")
    field.press("Control+Enter")
    expect(answers(prompt)).to_have_count(1)
    text = page.locator(".raw-text").inner_text()
    assert text.strip()
    page.get_by_role("button", name="Use as prompt").click()
    expect(field).to_have_value(f"Once upon a time{page.locator('.raw-text').text_content()}")


def test_what_is_copied_runs_elsewhere(prompt: Viewer, fleet: Fleet) -> None:
    page = prompt.page
    ask(prompt, 'It\'s a "quoted" $HOME question: what is a cat?')
    expect(answers(prompt)).to_have_count(1)
    page.get_by_role("button", name="curl / Python").click()
    shown = page.locator(".copy-text")
    expect(shown).to_contain_text(f"curl --no-buffer {fleet.inference_url}/v1/chat/completions")
    curl = subprocess.run(
        ["/bin/sh", "-c", shown.inner_text()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1"},
    )
    assert curl.stdout.rstrip().endswith("data: [DONE]")
    page.get_by_role("tab", name="Python").click()
    expect(shown).to_contain_text("client.chat.completions.create(")
    python = subprocess.run(
        [sys.executable, "-c", shown.inner_text()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"NO_PROXY": "127.0.0.1"},
    )
    assert python.stdout.strip()


def test_a_conversation_survives_as_a_file(prompt: Viewer) -> None:
    page = prompt.page
    page.get_by_label("System text").fill("Be brief.")
    ask(prompt, "What is a cat?")
    expect(answers(prompt)).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export the conversation").click()
    file = download.value.path().read_bytes()
    page.get_by_role("button", name="New").click()
    page.get_by_role("button", name="Begin anew").click()
    expect(page.get_by_text("Ask the model something")).to_be_visible()
    page.get_by_label("System text").fill("")
    chooser = page.locator("main input[type=file]").first
    chooser.set_input_files({"name": "no.json", "mimeType": "application/json", "buffer": b"{}"})
    expect(page.get_by_text("no.json is not imported: format must be")).to_be_visible()
    chooser.set_input_files({"name": "c.json", "mimeType": "application/json", "buffer": file})
    expect(page.locator(".user-text")).to_have_text("What is a cat?")
    expect(page.get_by_label("System text")).to_have_value("Be brief.")


def test_a_used_page_has_no_serious_accessibility_finding(
    open_viewer: OpenViewer, panel: str
) -> None:
    """A conversation with thinking, Markdown and a call; then a dialog over it."""
    viewer = open_viewer(is_audited=True)
    viewer.open(panel, "prompt")
    page = viewer.page
    answer_with(
        viewer, "# Title\n\n[link](https://example.org) `a`\n\n```py\na = 1\n```\n\n|a|\n|-|\n|1|"
    )
    ask(viewer, "Show me Markdown.")
    expect(answers(viewer)).to_have_count(1)
    page.unroute(CHAT)
    page.locator("summary", has_text="Tools").click()
    page.get_by_role("button", name="Add an example").click()
    page.get_by_label("Choice").select_option("required")
    ask(viewer, "What is the weather in Paris?")
    expect(page.get_by_label("Result of get_weather")).to_be_visible()
    page.get_by_label("Temperature", exact=True).fill("7")
    assert viewer.findings() == []
    page.emulate_media(color_scheme="dark")
    assert viewer.findings() == []
    page.get_by_role("button", name="curl / Python").last.click()
    assert viewer.findings() == []


def test_without_anything_to_ask_the_page_says_why(open_viewer: OpenViewer) -> None:
    with Fleet.start(agents=0, model=None, balancer_options=[PANEL]) as fleet:
        addresses = fleet.balancer.wait_for_log("balancer up")["web_admin_panel"]
        assert isinstance(addresses, list)
        viewer = open_viewer()
        viewer.open(f"http://{addresses[0]}/", "prompt")
        expect(viewer.page.get_by_role("heading", name="No model yet")).to_be_visible()
        expect(viewer.page.get_by_label("Your message")).to_be_disabled()
        fleet.desire(BUNDLED_MODEL, enable_embeddings=True)
        viewer.page.reload()
        reason = viewer.page.get_by_role("heading", name="No deployment generates text")
        expect(reason).to_be_visible()
        expect(viewer.page.get_by_label("Your message")).to_be_disabled()


def test_a_reload_keeps_the_conversation_and_a_new_tab_has_none(
    prompt: Viewer, open_viewer: OpenViewer, panel: str
) -> None:
    ask(prompt, "What is a cat?")
    expect(answers(prompt)).to_have_count(1)
    expect(prompt.page.locator(".answer-figures")).to_contain_text("ending")
    prompt.page.reload()
    prompt.wait_shown()
    expect(answers(prompt)).to_have_count(1)
    other = open_viewer()
    other.open(panel, "prompt")
    expect(answers(other)).to_have_count(0)


def test_a_deployment_that_has_failed_says_so_before_anything_is_sent(
    prompt: Viewer, fleet: Fleet, tmp_path: Path
) -> None:
    """A request to it would wait, and end with 504."""
    page = prompt.page
    default = current(fleet)["revision"]["state"]["deployments"][0]
    apply(fleet, default, deployment(tmp_path / "nowhere.gguf", "broken"))
    try:
        page.get_by_label("Deployment").select_option("broken")
        note = page.locator(".note.bad")
        expect(note).to_contain_text("No agent answers: no memory on a1.")
        expect(note).to_contain_text("Make room for it, or add an agent.")
        expect(page.get_by_label("Your message")).to_be_disabled()
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        note.get_by_role("link", name="change broken").click()
        expect(page.get_by_role("heading", name="Edit broken")).to_be_visible()
        prompt.go("prompt")
        page.get_by_label("Deployment").select_option("default")
        expect(page.get_by_label("Your message")).to_be_enabled()
    finally:
        apply(fleet, default)


def test_a_prompt_is_saved_in_the_browser_and_taken_up_again(prompt: Viewer) -> None:
    page = prompt.page
    page.locator("summary", has_text="Saved prompts").click()
    page.get_by_label("System text").fill("Be <b>brief</b>.")
    page.get_by_label("Your message").fill("What is a cat?")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Give it a name.")).to_be_visible()
    page.get_by_label("Save what is written as").fill("<i>cats</i>")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("It is saved in this browser.")).to_be_visible()
    page.get_by_label("System text").fill("")
    page.reload()
    page.locator("summary", has_text="Saved prompts").click()
    page.get_by_label("Prompt to take up").select_option("<i>cats</i>")
    expect(page.get_by_label("Your message")).to_have_value("What is a cat?")
    expect(page.get_by_label("System text")).to_have_value("Be <b>brief</b>.")
    page.get_by_role("button", name="Delete <i>cats</i>").click()
    expect(page.get_by_label("Prompt to take up")).to_be_disabled()


def test_several_streams_at_the_same_time_have_their_figures(
    open_viewer: OpenViewer, panel: str
) -> None:
    """Three streams on two slots: one waits for its turn."""
    viewer = open_viewer(is_audited=True)
    viewer.open(panel, "prompt")
    page = viewer.page
    page.get_by_role("button", name="Several streams at the same time").click()
    dialog = page.get_by_role("dialog", name="Several streams of default")
    dialog.get_by_label("Streams").fill("33")
    expect(dialog).to_contain_text("Give a whole number from 1 to 32.")
    expect(dialog.get_by_role("button", name="Run")).to_be_disabled()
    dialog.get_by_label("Streams").fill("3")
    dialog.get_by_label("Tokens of each").fill("40")
    dialog.get_by_role("button", name="Run").click()
    figures = dialog.get_by_role("table", name="Figures of the streams")
    expect(figures).to_contain_text("3 of 3")
    expect(figures.get_by_role("row", name="TTFT, worst")).to_contain_text(re.compile("[0-9] m?s"))
    expect(figures.get_by_role("row", name="All streams together")).to_contain_text("tok/s")
    expect(dialog.get_by_role("button", name="Run")).to_be_enabled(timeout=60_000)
    assert viewer.findings() == []
    dialog.get_by_label("Tokens of each").fill("2048")
    dialog.get_by_role("button", name="Run").click()
    dialog.get_by_role("button", name="Stop").click()
    expect(dialog).to_contain_text("It was stopped.")
