"""A draft model that cannot be one is refused at the start of the agent, by the option's name."""

from __future__ import annotations

from pathlib import Path

from daemon_configs import config_of

from cli_in_process import invoke
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.system.settings.agent_config import AgentConfig

AGENT = ("agent", "--management-addr", "127.0.0.1:1", "--slots", "1", "--draft-model")


def test_what_is_no_draft_model_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    for path, reason in [
        (tmp_path / "none.gguf", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (text, "is no GGUF file"),
    ]:
        ended = invoke(*AGENT, path)
        words = " ".join(ended.stderr.replace("│", " ").split())
        assert ended.exit_code == 2
        assert "--draft-model" in words
        assert str(path).rpartition("/")[2] in words.replace(" ", "")
        assert reason in words


def test_a_gguf_file_is_taken() -> None:
    config = config_of(*AGENT, str(BUNDLED_MODEL))
    assert isinstance(config, AgentConfig)
    assert config.engine.draft_model == str(BUNDLED_MODEL)
