"""The Model page: an operator changes what the fleet serves, watches the rollout, and goes back.

One fleet for the file. Each test reads what is in force before it changes anything, and none relies
on what another one has left but for a ``default`` that serves the bundled model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleet import BUNDLED_MODEL, Fleet
from playwright.sync_api import Browser, Locator, expect
from prompting import ask
from rollouts import apply, current, deployment, ends, follow
from viewer import PHONE, Viewer

from conftest import PANEL, panel_of
from hub_server import Repository, hub_server

OpenViewer = Callable[..., Viewer]
REPOSITORY = {
    "demo-Q4_K_M.gguf": BUNDLED_MODEL.read_bytes(),
    "demo-Q8_0.gguf": b"no model",
    "mmproj-F16.gguf": b"no projection",
}
TEMPLATE = "{% for m in messages %}\n<{{ m.role }}>{{ m.content }}\n{% endfor %}"
AT_REST = {"serving", "rolled_back"}
"""Phases of agents of a rollout that is over."""
BROKEN = "{% for m in messages %}\n{{ m.content \n{% endfor %}"


@pytest.fixture(scope="module")
def fleet(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One agent, which is quick to change, on a machine that says it has a GPU; and a hub."""
    home = tmp_path_factory.mktemp("hub")
    with hub_server({"org/demo": Repository(REPOSITORY)}) as hub:
        program = home / "nvidia-smi"
        program.write_text("#!/bin/sh\necho 'NVIDIA H200, 550.1, 143771, 0, 0, 30, 70'\n")
        program.chmod(0o755)
        path = f"{home}:{os.environ['PATH']}"
        env = {"HF_ENDPOINT": hub.hub_url, "HF_HOME": str(home), "PATH": path}
        with Fleet.start(agents=1, slots=2, balancer_options=[PANEL], env=env) as fleet:
            yield fleet


@pytest.fixture
def model_page(fleet: Fleet, viewer: Viewer) -> Viewer:
    """The form of ``default``, with nothing else in the fleet."""
    settle(fleet)
    viewer.open(panel_of(fleet), "model/edit/default")
    return viewer


def settle(fleet: Fleet) -> int:
    """Only ``default``, with the bundled model, and served; the revision."""
    revision = apply(fleet, deployment(BUNDLED_MODEL), note="as it was")
    follow(fleet, lambda rollout: {each["phase"] for each in rollout["agents"]} <= AT_REST)
    return revision


def field(viewer: Viewer, path: str) -> Locator:
    return viewer.page.locator(f'[data-field="{path}"]')


def fill(viewer: Viewer, path: str, text: str) -> None:
    """Open its section, where it has one, and type."""
    section = viewer.page.locator("details.section", has=field(viewer, path))
    if section.count() and section.get_attribute("open") is None:
        section.locator("summary").click()
    viewer.page.locator(f'[data-field="{path}"] :is(input, textarea)').fill(text)


def review(viewer: Viewer) -> Locator:
    """The review of what is in the form."""
    viewer.page.get_by_role("button", name="Review").first.click()
    dialog = viewer.page.get_by_role("dialog", name="Change default")
    expect(dialog).to_be_visible()
    return dialog


def stored(fleet: Fleet, name: str = "default") -> dict[str, object]:
    """The deployment in force."""
    specs = current(fleet)["revision"]["state"]["deployments"]
    (spec,) = (each for each in specs if each["name"] == name)
    return dict(spec)


def rollout(viewer: Viewer, name: str = "default") -> Locator:
    return viewer.page.get_by_role("region", name=f"Rollout of {name}", exact=True)


def test_a_larger_context_is_reviewed_applied_and_watched_to_its_end(
    model_page: Viewer, fleet: Fleet
) -> None:
    page = model_page.page
    fill(model_page, "parameters.context_size", "")
    expect(field(model_page, "parameters.context_size")).to_contain_text("Give a whole number")
    fill(model_page, "parameters.context_size", "2048")
    expect(field(model_page, "parameters.context_size")).to_contain_text("Was 1,024 tokens")
    dialog = review(model_page)
    expect(dialog).to_contain_text("new context")
    expect(dialog).to_contain_text("2,048 tokens")
    dialog.get_by_label("Note").fill("a larger context")
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("“a larger context”")).to_be_visible()
    revision = current(fleet)["revision"]["revision"]
    expect(rollout(model_page)).to_contain_text(f"→ {revision}")
    expect(rollout(model_page)).to_contain_text("complete", timeout=60_000)
    expect(rollout(model_page)).to_contain_text("1 of 1 agent serves it.")
    assert stored(fleet)["parameters"]["context_size"] == 2048  # type: ignore[index]
    expect(page.get_by_role("region", name="Deployment default")).to_contain_text("2,048 tokens")


def test_an_undo_asks_first_and_is_a_revision_of_its_own(model_page: Viewer, fleet: Fleet) -> None:
    before = current(fleet)["revision"]["revision"]
    apply(fleet, deployment(BUNDLED_MODEL, priority=7), note="important now")
    model_page.go("model/history")
    page = model_page.page
    newest = page.get_by_role("region", name=f"Revision {before + 1}")
    expect(newest).to_contain_text("important now")
    expect(newest).to_contain_text("in force")
    newest.locator("summary").click()
    expect(newest.get_by_text("Priority", exact=True)).to_be_visible()
    page.get_by_role("button", name=f"Back to revision {before}").click()
    dialog = page.get_by_role("dialog", name=f"Back to revision {before}?")
    expect(dialog).to_contain_text("Priority")
    dialog.get_by_role("button", name="Store it as a new revision").click()
    expect(page.get_by_role("region", name=f"Revision {before + 2}")).to_contain_text("in force")
    assert stored(fleet)["priority"] == 0


def test_escape_time_and_again_drops_no_template(model_page: Viewer) -> None:
    """After some in a row a browser closes a dialog, whatever the page says to it."""
    model_page.expect_error("status of 400")
    page = model_page.page
    page.get_by_role("button", name="Write another").click()
    editor = page.get_by_role("textbox", name="Template")
    editor.fill("{{ messages }}")
    leaving = page.get_by_role("dialog", name="Leave without this template?")
    for _ in range(6):
        page.keyboard.press("Escape")
        expect(leaving).to_be_visible()
        page.keyboard.press("Escape")
        expect(leaving).to_have_count(0)
        expect(editor).to_be_visible()
    expect(editor).to_have_value("{{ messages }}")


def test_a_template_is_tried_while_it_is_written(model_page: Viewer, fleet: Fleet) -> None:
    model_page.expect_error("status of 400")  # what the agents make of a template that is wrong
    page = model_page.page
    page.get_by_role("button", name="Write another").click()
    editor = page.get_by_role("textbox", name="Template")
    editor.fill(TEMPLATE)
    prompt = page.get_by_label("Prompt", exact=True)
    expect(prompt).to_contain_text("<user>What is the tallest mountain in Europe?")
    page.get_by_role("radio", name="Turns").check()
    expect(prompt).to_contain_text("<assistant>Mount Elbrus")
    editor.fill(BROKEN)
    expect(page.get_by_role("alert")).to_contain_text("Line 3")
    expect(page.locator(".gutter .wrong")).to_have_text("3")
    expect(editor).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    leaving = page.get_by_role("dialog", name="Leave without this template?")
    leaving.get_by_role("button", name="Cancel").click()
    expect(editor).to_have_value(BROKEN)
    editor.fill(TEMPLATE)
    page.get_by_role("button", name="Use this template").click()
    dialog = review(model_page)
    expect(dialog).to_contain_text("in place")
    expect(dialog.get_by_text("<{{ m.role }}>{{ m.content }}")).to_be_visible()
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("region", name="Deployment default")).to_contain_text("override")
    assert stored(fleet)["template"] == TEMPLATE


def test_two_operators_cannot_overwrite_each_other_unseen(
    model_page: Viewer, open_viewer: OpenViewer, fleet: Fleet
) -> None:
    model_page.expect_error("status of 409")
    other = open_viewer()
    other.open(panel_of(fleet), "model/edit/default")
    fill(model_page, "priority", "3")
    fill(model_page, "idle_ttl", "600")
    mine = review(model_page)
    expect(mine.get_by_role("button", name="Apply")).to_be_enabled()
    fill(other, "priority", "5")
    fill(other, "aliases", "gpt-4o")
    theirs = review(other)
    theirs.get_by_label("Note").fill("the other one")
    theirs.get_by_role("button", name="Apply").click()
    expect(other.page.get_by_text("“the other one”")).to_be_visible()
    mine.get_by_role("button", name="Apply").click()
    conflict = model_page.page.get_by_role("dialog", name="Somebody else changed the fleet")
    expect(conflict).to_contain_text("“the other one”")
    expect(conflict).to_contain_text("Both changed “Priority”; yours wins.")
    expect(conflict.get_by_role("region", name="Their changes")).to_contain_text("gpt-4o")
    expect(conflict.get_by_role("region", name="Your changes")).to_contain_text("600 s")
    assert stored(fleet)["priority"] == 5, "nothing of mine is stored yet"
    conflict.get_by_role("button", name="Put mine on top").click()
    again = model_page.page.get_by_role("dialog", name="Change default")
    expect(again).not_to_contain_text("gpt-4o")
    again.get_by_role("button", name="Apply").click()
    expect(model_page.page.get_by_role("heading", name="Model", level=1)).to_be_visible()
    spec = stored(fleet)
    assert (spec["priority"], spec["aliases"], spec["idle_ttl"]) == (3, ["gpt-4o"], 600)


def test_what_the_balancer_refuses_is_marked_at_its_field(model_page: Viewer, fleet: Fleet) -> None:
    model_page.expect_error("status of 400")
    apply(
        fleet,
        deployment(BUNDLED_MODEL),
        deployment(BUNDLED_MODEL, "coder", aliases=["taken"], where=["agent=nobody"]),
    )
    model_page.go("model")
    expect(model_page.page.get_by_role("region", name="Deployment coder")).to_be_visible()
    model_page.go("model/edit/default")
    fill(model_page, "aliases", "taken")
    model_page.page.get_by_role("button", name="Review").first.click()
    aliases = field(model_page, "aliases")
    expect(aliases).to_contain_text("is a name of")
    expect(aliases.locator("textarea")).to_have_attribute("aria-invalid", "true")
    expect(aliases.locator("textarea")).to_be_focused()
    assert stored(fleet)["aliases"] == []
    fill(model_page, "aliases", "free")
    expect(aliases).not_to_contain_text("is a name of")


def test_a_model_that_is_not_there_is_rolled_back_with_its_reason(
    model_page: Viewer, fleet: Fleet, tmp_path: Path
) -> None:
    tried = current(fleet)["revision"]["revision"] + 1
    missing = tmp_path / "missing.gguf"
    model_page.expect_error("status of 422")  # the answer about a file that is not there
    fill(model_page, "model", str(missing))
    dialog = review(model_page)
    expect(dialog).to_contain_text("new weights")
    dialog.get_by_role("button", name="Apply").click()
    shown = rollout(model_page)
    expect(shown).to_contain_text("rolled back", timeout=60_000)
    expect(shown).to_contain_text("missing.gguf")
    deployed = model_page.page.get_by_role("region", name="Deployment default")
    expect(deployed).to_contain_text(BUNDLED_MODEL.name)
    assert stored(fleet)["model"] == {"LocalToAgent": str(BUNDLED_MODEL)}
    model_page.go("model/history")
    revision = model_page.page.get_by_role("region", name=re.compile(r"^Revision \d+$"))
    expect(revision.filter(has_text="failed default")).to_have_accessible_name(f"Revision {tried}")


def test_a_repository_shows_its_files_and_whether_they_fit(model_page: Viewer) -> None:
    model_page.expect_error("status of 422")  # the answer about a file that is no model
    page = model_page.page
    fill(model_page, "model", "org/demo")
    files = page.get_by_role("region", name="Quantisations of org/demo")
    expect(files).to_contain_text("Q8_0")
    expect(files.get_by_role("row", name=re.compile("Q4_K_M"))).to_contain_text("usual choice")
    page.get_by_role("button", name="Which of them fit?").click()
    usual = files.get_by_role("row", name=re.compile("Q4_K_M"))
    expect(usual.locator(".fits .badge")).to_have_text("fits", timeout=30_000)
    expect(usual.locator(".fits .numbers")).to_contain_text("MiB of")
    broken = files.get_by_role("row", name=re.compile("Q8_0"))
    expect(broken.locator(".fits .badge")).to_have_text(re.compile("does not load|unknown"))
    files.get_by_role("button", name="Choose Q4_K_M").click()
    source = field(model_page, "model").locator("input")
    expect(source).to_have_value(re.compile(r"hf:org/demo/demo-Q4_K_M\.gguf@[0-9a-f]{40}"))
    projection = field(model_page, "projection").locator("input")
    expect(projection).to_have_value(re.compile(r"hf:org/demo/mmproj-F16\.gguf@"))
    fill(model_page, "projection", "none")
    verdicts = page.locator(".verdicts > li")
    expect(verdicts).to_have_count(1)
    expect(verdicts.locator(".badge")).to_have_text("fits", timeout=60_000)
    numbers = verdicts.locator("summary .numbers")
    expect(numbers).to_have_text(re.compile(r"[\d.]+ MiB of .* \(memory\)"))


def test_the_agents_judge_by_themselves_and_what_does_not_load_must_be_confirmed(
    model_page: Viewer, fleet: Fleet
) -> None:
    model_page.expect_error("status of 422")
    page = model_page.page
    verdicts = page.locator(".verdicts > li")
    expect(verdicts).to_have_count(0)
    fill(model_page, "slots", "2")
    fill(model_page, "parameters.context_size", "2048")
    expect(verdicts.locator(".badge")).to_have_text("fits", timeout=60_000)
    expect(verdicts).to_contain_text("2,048 tokens for 2 slots, 1,024 each")
    expect(verdicts).to_contain_text("The machine has NVIDIA H200")
    expect(verdicts).to_contain_text("uses no GPU")
    fill(model_page, "model", "/nowhere/at-all.gguf")
    expect(verdicts.locator(".badge")).to_have_text("does not load", timeout=60_000)
    expect(verdicts.locator(".badge")).to_have_class(re.compile("bad"))
    expect(verdicts).to_contain_text("there is no file at /nowhere/at-all.gguf")
    dialog = review(model_page)
    expect(dialog).to_contain_text("It does not load on a1")
    apply_it = dialog.get_by_role("button", name="Apply")
    expect(dialog).to_contain_text("new weights")
    expect(apply_it).to_be_disabled()
    before = current(fleet)["revision"]["revision"]
    dialog.get_by_label("Note").press("Enter")
    dialog.get_by_label("Apply it all the same").check()
    expect(apply_it).to_be_enabled()
    dialog.get_by_role("button", name="Back").click()
    assert current(fleet)["revision"]["revision"] == before
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("button", name="Drop them").click()
    model_page.go("fleet")
    expect(page.get_by_text("512 tokens a slot")).to_be_visible()


def test_what_was_typed_survives_a_look_at_another_page(model_page: Viewer) -> None:
    page = model_page.page
    fill(model_page, "parameters.top_k", "12")
    model_page.go("logs")
    model_page.go("model")
    page.get_by_role("button", name="Go on with them").click()
    expect(field(model_page, "parameters.top_k").locator("input")).to_have_value("12")
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("button", name="Drop them").click()
    model_page.go("model/edit/default")
    expect(field(model_page, "parameters.top_k").locator("input")).to_have_value("80")


@pytest.mark.slow  # test_panel_pages.py looks at the page, too
def test_everybody_can_use_it(open_viewer: OpenViewer, fleet: Fleet, theme: str) -> None:
    viewer = open_viewer(theme=theme, is_audited=True)
    viewer.open(panel_of(fleet), "model")
    every = ("model", "model/edit/default", "model/new", "model/history")
    for route in every if theme == "light" else every[:2]:  # in the dark only colours differ
        viewer.go(route)
        assert viewer.findings() == [], route
    viewer.go("model/edit/default")
    viewer.page.get_by_role("button", name=re.compile("Write another|Edit")).click()
    assert viewer.findings() == [], "the template's dialog"


def test_it_fits_a_phone(open_viewer: OpenViewer, fleet: Fleet) -> None:
    viewer = open_viewer(size=PHONE)
    for route in ("model", "model/edit/default", "model/history"):
        viewer.open(panel_of(fleet), route)
        width = viewer.page.evaluate("document.querySelector('#content').scrollWidth")
        assert width <= PHONE[0], route


def test_a_rollout_is_paused_resumed_and_aborted(model_page: Viewer, fleet: Fleet) -> None:
    """With a second agent, since the only one of a deployment is no canary for others."""
    fleet.start_agent("a2", slots=2)
    fleet.wait_serving()
    apply(fleet, deployment(BUNDLED_MODEL, context_size=1536, rollout={"min_ready_s": 600}))
    model_page.go("model")
    shown = rollout(model_page)
    expect(shown).to_contain_text("canary")
    shown.get_by_role("button", name="Pause").click()
    expect(shown).to_contain_text("paused by anonymous")
    shown.get_by_role("button", name="Resume").click()
    expect(shown).to_contain_text("canary")
    shown.get_by_role("button", name="Abort").click()
    dialog = model_page.page.get_by_role("dialog", name="Abort the rollout?")
    expect(dialog).to_contain_text("go back to revision")
    dialog.get_by_role("button", name="Abort").click()
    expect(shown).to_contain_text("aborted by anonymous")
    follow(fleet, ends("aborted"))


def test_a_preset_is_written_stored_and_tried_beside_its_deployment(
    model_page: Viewer, fleet: Fleet
) -> None:
    engines = fleet.agents["a1"].engine_pids
    page = model_page.page
    presets = field(model_page, "presets")
    page.locator("details.section", has=presets).locator("summary").click()
    presets.get_by_role("button", name="Add a preset").click()
    presets.get_by_label("Name").fill("two words")
    expect(presets).to_contain_text("“two words” cannot name a preset")
    presets.get_by_label("Name").fill("yes-or-no")
    presets.get_by_label("System text").fill("Say yes or no.")
    others = presets.get_by_label("Other settings")
    others.fill('{"constraint": {"type": "choice", "choices": ["yes"]}')
    expect(presets).to_contain_text("yes-or-no: the other settings are no JSON")
    others.fill('{"constraint": {"type": "choice", "choices": ["yes"]}, "froced": ["constraint"]}')
    model_page.expect_error("status of 400")
    page.get_by_role("button", name="Review").first.click()
    expect(presets).to_contain_text("unknown field 'froced', did you mean 'forced'?")
    others.fill('{"constraint": {"type": "choice", "choices": ["yes"]}, "forced": ["constraint"]}')
    dialog = review(model_page)
    expect(dialog).to_contain_text("yes-or-no")
    dialog.get_by_role("button", name="Apply").click()
    model_page.page.wait_for_url(re.compile(r"#/model$"))
    assert stored(fleet)["presets"] == [
        {
            "name": "yes-or-no",
            "system": "Say yes or no.",
            "constraint": {"type": "choice", "choices": ["yes"]},
            "forced": ["constraint"],
        }
    ]
    assert fleet.agents["a1"].engine_pids == engines, "nothing is loaded"
    page.get_by_role("link", name="Try two").click()
    expect(page.get_by_label("Deployment of side A")).to_have_value("yes-or-no")
    expect(page.get_by_label("Deployment of side B")).to_have_value("default")
    ask(model_page, "Is it?")
    said = page.get_by_role("region", name="Side A").locator(".answer[data-phase=done]")
    expect(said).to_contain_text(re.compile(r"\byes\b"))
    expect(page.locator(".answer[data-phase=done]")).to_have_count(2)
