"""``template render`` prints the prompt to the byte, from files or standard input."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import Result
from typer.testing import CliRunner

import paddler_trio.models
from paddler_trio.cli.commands import command_line

MODEL = Path(paddler_trio.models.__file__).with_name("paddler-demo.gguf")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% if enable_thinking is defined %}thinking: {{ enable_thinking }}\n{% endif %}{{ note }}"
    "{% if add_generation_prompt %}[assistant]\n\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "h\u00e4 \U0001f600 <|im_end|>"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {}}}]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The command sets up the logs of its process, which is that of all tests here."""
    root, of_structlog = logging.getLogger(), structlog.get_config()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.configure(**of_structlog)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    contents: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "kwargs": {"note": "n\n"}}
    paths = {"template": str(tmp_path / "template.jinja")}
    Path(paths["template"]).write_text(TEMPLATE)
    for name, value in contents.items():
        paths[name] = str(tmp_path / f"{name}.json")
        Path(paths[name]).write_text(json.dumps(value))
    return paths


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        command_line(["template"]), ["template", "render", *arguments], input=stdin
    )


def test_the_prompt_is_printed_without_anything_of_ours(files: dict[str, str]) -> None:
    ended = run("--template", files["template"], "--messages", files["messages"])
    assert ended.exit_code == 0
    assert ended.stdout_bytes == "[user] hä 😀 <|im_end|>\n".encode()


def test_everything_a_request_can_say_can_be_said(files: dict[str, str]) -> None:
    ended = run(
        *("--template", files["template"], "--messages", files["messages"]),
        *("--tools", files["tools"], "--kwargs", files["kwargs"], "--no-thinking"),
        *("--add-generation-prompt", "--bos-token", "<s>", "--eos-token", "</s>"),
    )
    assert ended.stdout_bytes.decode() == (
        "<s>[user] hä 😀 <|im_end|></s>\n"
        + json.dumps(TOOLS, ensure_ascii=False)
        + "\nthinking: False\nn\n[assistant]\n\n"
    )


def test_special_tokens_may_come_with_the_other_variables(
    files: dict[str, str], tmp_path: Path
) -> None:
    kwargs = tmp_path / "tokens.json"
    kwargs.write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    ended = run(
        *("--template", files["template"], "--messages", files["messages"]),
        *("--kwargs", str(kwargs), "--thinking"),
    )
    assert ended.stdout_bytes.decode() == "<s>[user] hä 😀 <|im_end|></s>\nthinking: True\n"


def test_messages_and_tools_may_come_as_one_request_on_standard_input(
    files: dict[str, str],
) -> None:
    request = json.dumps({"messages": MESSAGES, "tools": TOOLS})
    ended = run("--template", files["template"], "--messages", "-", stdin=request)
    assert json.dumps(TOOLS, ensure_ascii=False) in ended.stdout_bytes.decode()


def test_a_model_file_gives_its_template_and_its_tokens(files: dict[str, str]) -> None:
    ended = run("--model", str(MODEL), "--messages", files["messages"], "--add-generation-prompt")
    assert ended.exit_code == 0
    assert ended.stdout_bytes.decode().endswith(
        "<|im_start|>user\nhä 😀 <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    both = run(
        *("--model", str(MODEL), "--template", files["template"]),
        *("--messages", files["messages"]),
    )
    assert both.stdout_bytes.decode() == "<|endoftext|>[user] hä 😀 <|im_end|><|im_end|>\n"


def test_the_last_message_can_be_left_open(files: dict[str, str]) -> None:
    messages = json.dumps([*MESSAGES, {"role": "assistant", "content": "It is"}])
    ended = run(
        *("--template", files["template"], "--messages", "-", "--continue-final-message"),
        stdin=messages,
    )
    assert ended.stdout_bytes.decode() == "[user] hä 😀 <|im_end|>\n[assistant] It is"


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ('[{"role": "user"}, 3]', r"messages\[1\]: expected an object, got 3"),
        ('[{"role": "user", "content": "\\ud800"}]', "lone surrogate"),
    ],
)
def test_a_request_that_an_agent_would_refuse_is_one_line(
    files: dict[str, str], stdin: str, words: str
) -> None:
    ended = run("--template", files["template"], "--messages", "-", stdin=stdin)
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1
    assert re.search(words, ended.stderr)


@pytest.mark.parametrize(
    "source", ["{% if", "{{ raise_exception('not these roles') }}", "{{ messages.x.y }}"]
)
def test_a_template_that_fails_says_why_in_one_line(
    files: dict[str, str], tmp_path: Path, source: str
) -> None:
    bad = tmp_path / "bad.jinja"
    bad.write_text(source)
    ended = run("--template", str(bad), "--messages", files["messages"])
    assert ended.exit_code == 1
    assert ended.stderr.startswith("paddler-trio: chat template")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--messages": "nowhere.json"}, "No such file"),
        ({"--messages": "{template}"}, "is not JSON"),
        ({"--messages": "{kwargs}"}, "expected an array of messages"),
        ({"--tools": "{kwargs}"}, "expected an array of tools"),
        ({"--kwargs": "{messages}"}, "expected an object"),
        ({"--template": "nowhere.jinja"}, "No such file"),
        ({"--template": str(MODEL)}, "not UTF-8"),
        ({"--template": None}, "--template FILE, --model GGUF, or both"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2(
    files: dict[str, str], change: dict[str, str | None], words: str
) -> None:
    given: dict[str, str | None] = {
        "--template": files["template"],
        "--messages": files["messages"],
        **change,
    }
    arguments = [
        part.format(**files) if part.startswith("{") else part
        for option, value in given.items()
        if value is not None
        for part in (option, value)
    ]
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert words in " ".join(ended.stderr.replace("│", " ").split())


def test_a_file_that_is_no_model_is_one_line(files: dict[str, str]) -> None:
    ended = run("--model", files["template"], "--messages", files["messages"])
    assert ended.exit_code == 1
    assert "not a GGUF file" in ended.stderr
