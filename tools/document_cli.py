"""Write ``docs/cli.md`` from the commands themselves, so that it cannot say anything else.

.venv/bin/python tools/document_cli.py          # writes docs/cli.md
.venv/bin/python tools/document_cli.py --check  # exit code 1 if it would change
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from paddler_trio.cli.commands import command_line

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

`paddler-trio` runs the daemons and talks to them. This page is written by
`tools/document_cli.py` from the commands themselves; `paddler-trio COMMAND --help` says the same.
`paddler-trio --version` prints the versions of paddler-trio, llama.cpp and Python;
[`completion`](#completion) teaches a shell the commands and their flags.

**Exit codes.** Daemons end with 0 after an orderly stop.

| code | |
|---|---|
| 0 | done |
| 1 | it did not work, and one line on standard error says why |
| 2 | the command line is wrong, or a file that it names |
| 3 | the rollout was rolled back: agents serve what they served before |
| 4 | it was waited for, and is not done after `--timeout`; it goes on |
| 5 | the balancer refused what `fleet` or `rollout` asked; nothing was changed |
| 130 | interrupted with Ctrl-C; a rollout goes on |

**Output.** Answers go to standard output; progress, warnings and errors go to standard error. On a
terminal there are colours and live tables, in a pipe there is plain text. `--json` prints one JSON
object (one a line where it repeats) and nothing else on standard output.

**Settings.** Each flag of `balancer` and `agent` is an environment variable as well, and a key in
the file of `--config`: see [settings](settings.md).

**Addresses** are `host:port` or `[IPv6]:port`. Proxies named in the environment are not used.
"""

NOTES = {
    "model set": """\
`SOURCE` is one of

* a path on the agents. A relative one is resolved here and refused if it does not exist here,
  because an agent would look for it in a directory of its own;
* `https://...` or `http://...`;
* `hf:org/repo/file@revision`: a file of a Hugging Face repository. The file may have slashes;
  without a revision it is `main`. The address of its page on huggingface.co means the same;
* `hf:org/repo:Q4_K_M` or `hf:org/repo`: a repository, of which the file with this quantisation is
  chosen as llama.cpp's `-hf` does, together with the projection for images that fits it
  (`--projection none` leaves it out). What was chosen is stored, with its commit. See
  [models](models.md);
* `store://sha256/HEX/NAME`: what `model push` uploaded to the balancer's model store. With `--push`
  `SOURCE` is a file of this machine, which is uploaded first, and so is a `--projection` that is a
  file here;
* `none`: serve nothing.

A parameter file has the names of the flags with underscores, `temperature = 0.2` in TOML or
`{"temperature": 0.2}` in JSON; a name that is no parameter is refused. What neither the file nor a
flag gives stays as it is now.

Before it stores anything that differs, the command prints each change, old and new, and whether
agents must load their model anew or apply the change to the running one. Storing what is desired
already changes nothing.
""",
    "model swap": """\
`SOURCE`, the parameters and what is printed are those of `model set`.

The change is rolled out agent by agent, and each is shown as it goes: prefetching, draining,
loading, probing, serving, failed, rolled back. On a terminal that is a table that lives, else a
line for each change. A balancer that is started again goes on with the rollout, and the command
with it.

| code | how the wait ended |
|---|---|
| 0 | the rollout is complete |
| 3 | it was rolled back, with the reason: the model before is served again |
| 4 | `--timeout` is over; the rollout goes on |
| 1 | anything else |

Anything else is: the rollout was aborted, or it pauses because something failed; another state was
stored meanwhile; no agent is connected.

Ctrl-C ends the command, not the rollout: `paddler-trio rollout --watch` shows it again.

`--dry-run` prints what would be different, the class of the change (none, in place, context,
weights), for each agent whether the model fits, with the numbers of `model fit`, how many bytes it
would fetch and how long it would load, and the gap: the time in which nobody would serve. The load
time is the agent's last one, stretched as the models need more or less memory. Exit code 1 if the
model does not fit an agent, or if that cannot be said.

A balancer of Paddler's, and one of ours from before there were rollouts, changes all agents at the
same time. Then the wait ends with 0 when every connected agent serves the new state, and with 1
when one has failed or was lost for a quarter of a minute; the state stays stored, and agents keep
trying.
""",
    "fleet apply": """\
`FILE` describes all deployments; those that it does not name are removed. The fields are those of
`/api/v2/fleet`:

```toml
note = "coder moves to 32k"

[[deployments]]
name = "default"                     # what Paddler's agents and clients see
model = "hf:org/repo:Q4_K_M"         # every SOURCE of `model set`

[[deployments]]
name = "coder"                       # requests name it as their model
model = "/models/coder.gguf"
parameters = { context_size = 32768, n_gpu_layers = "auto" }
template = { file = "chat.jinja" }   # or the text itself
aliases = ["gpt-4o"]
slots = 4                            # on each agent
replicas = "0..2"                    # a number, min..max, or all
where = ["gpu=yes"]                  # labels of agents, or agent=NAME
idle_ttl = 600                       # seconds
priority = 1
rollout = { max_unavailable = 1, canary = 1, min_ready_s = 10, on_failure = "rollback" }
```

Paths are absolute, and on the agents; a template's file is beside `FILE`. A repository is resolved
to a file and a commit now, on this machine, and again by the next `apply`: name `file@commit` where
that must not change anything.

What would change is printed first, with its class:

| class | what agents do |
|---|---|
| none | what is served stays the same: replicas, conditions, aliases, rules |
| in place | sampling, template: they apply it to the running model |
| context | a new context over the same weights |
| weights | other files |
| added, removed | load it; unload it once its running answers have finished |

The revision is stored only if the one that it was compared with is still in force; otherwise exit
code 5. Waiting is as for `model swap`, for all deployments that change; of several endings the exit
code is 3 before 4 before 1. `--dry-run` judges each deployment as if the others stayed.
""",
    "fleet show": """\
*Replicas* are the agents that serve it and those that shall now; in brackets what the file says, if
that is not the same number.
""",
    "fleet undo": """\
Twice undone is the revision that was undone first. A single deployment goes back with
`rollout undo`. So does a rollout that fails, by itself: `fleet history` has its reason.
""",
    "rollout": """\
`--watch` ends when no rollout goes on by itself, as `kubectl rollout status` does: with 3 if one
was rolled back, with 1 if one was aborted or pauses because something failed, else with 0.
""",
    "rollout abort": """\
What was served before is stored as a new revision.
""",
    "model fit": """\
What is not given is as in the desired state, or the defaults with `--here`. Exit code 0: it fits
every agent that was asked; 1: it does not fit one; 2: it cannot be said, or nobody was asked. See
[models](models.md#does-it-fit).
""",
    "model pull": """\
`SOURCE` is as for `model set`; of a repository the projection comes too. The model is fetched, and
nothing is swapped. Exit code 0 when every agent has it, but for agents of Paddler's, which cannot,
and were not named. What is here of a file stays when the command ends early; give it again, and it
goes on there. See [models](models.md#models-that-agents-keep).
""",
    "model push": """\
All parts of a model in several files are sent when one is named. The command hashes them, sends
what the balancer's store lacks, and prints the `model swap` that serves them. It tries again while
the balancer is away, and gives up after ten failures without a byte more; give it again, and it
goes on there. See [models](models.md#a-file-of-one-machine-on-every-agent).
""",
    "model verify": """\
Exit code 1 if something was quarantined or could not be read, or if nothing is selected. A cache
that several agents share is hashed once.
""",
    "model prune": """\
A model stays if one `--keep` says so, if it is desired or in use on its machine, or if no agent has
ever used it. `--keep 0` keeps none but the last two.
""",
    "template render": """\
Nothing is added to the prompt, not even a newline at the end. Messages and tools are judged and
adapted to the template as an agent does it. Without `--add-generation-prompt` the prompt ends
after the last message, as in Hugging Face's `apply_chat_template`. A template alone does not know
its special tokens: give them if it prints them, as flags or as `bos_token` and `eos_token` in
`--kwargs`.

```sh
paddler-trio template render --template qwen3.jinja --messages chat.json --no-thinking \\
  --add-generation-prompt
```

Exit code 1 and one line if an agent would refuse the request; 2 if a file cannot be read.
""",
    "config check": """\
Without `FILE` it is the one of `PADDLER_TRIO_CONFIG`. Exit code 2 and a line for each problem: its
table, key, value and limit. See [settings](settings.md).
""",
    "config show": """\
What stands behind the daemon's name is its command line, so flags can be tried:
`paddler-trio config show balancer --config settings.toml --drain-timeout 5000`. Each setting is
shown with where it comes from: a flag, a variable, the file, or the default. See
[settings](settings.md).
""",
    "completion": """\
```sh
paddler-trio completion bash > ~/.local/share/bash-completion/completions/paddler-trio
echo 'source <(paddler-trio completion zsh)' >> ~/.zshrc     # behind compinit
paddler-trio completion fish > ~/.config/fish/completions/paddler-trio.fish
```

For this one shell: `eval "$(paddler-trio completion bash)"`. The script asks `paddler-trio` at
every Tab, so it stays right when the program changes.
""",
    "chat": """\
The model's reasoning goes to standard error. Ctrl-C closes the connection, which stops the request
on the agent.

Without a `PROMPT`, on a terminal, a conversation begins. Ctrl-C stops an answer and keeps the
conversation, with what came of the answer; Ctrl-D ends it. The arrow keys bring back what was
typed, also in earlier conversations: it is kept in `$XDG_STATE_HOME/paddler-trio/chat_history`,
readable by its owner alone. `/help` lists the commands:

| command | |
|---|---|
| `/set system TEXT` | a system message; without `TEXT`, none |
| `/set parameter NAME VALUE` | `stop`, `max_tokens` or one of [`sampling`](api_v2.md) |
| `/set parameter NAME` | as the fleet has it |
| `/set think`, `/set nothink` | whether the model reasons first |
| `/load MODEL` | answer with another deployment; without `MODEL`, list them |
| `/attach FILE` | send an image or a text file with the next message |
| `/show`, `/clear`, `/bye` | show what is set; forget what was said; end |
| `\"\"\"` | begins and ends a message of several lines |
""",
    "top": """\
Two tables: the agents with their slots, and the requests that wait or run. Above them stand the
queue, the slots and the tokens a second of the whole fleet, and what keeps requests waiting.

| key | |
|---|---|
| Tab | the other table |
| arrows, `j`, `k`, PgUp, PgDn, Home, End | another row |
| `s`, `r` | sort by the next column; reverse the order |
| `/` | a filter: words that a row must have; Enter keeps it, Esc ends it |
| Enter | what happened to the selected request, as `explain` prints it |
| `c` | cancel the selected request, after a `y` |
| `d` | drain the selected agent, or give it work again, after a `y` |
| `?` | what keys and columns mean |
| `q`, Esc, Ctrl-C | quit |

Where there is no terminal, `top` prints what is so now, and ends; `--json` has all of it. While the
balancer is away, the last picture stays, and the first line has since when. See
[watching a fleet](watching.md).
""",
    "requests": """\
The newest come first. Times in a table are those of this
machine's zone, in CSV and JSON UTC or milliseconds of the balancer's clock. See
[watching a fleet](watching.md).
""",
    "explain": """\
Stages that a request went through, each with when it began after the arrival, how long it took, and
a bar: the queue with its positions, the agent and why it was chosen, template, engine's queue,
prefill with the cached part, decode with its speed, continuations, the ending. Agents of Paddler's
report less of it. Exit code 1 if the request is not known (any more).
""",
    "rpc-server": """\
A model that fits no machine can be spread over several: start an RPC server on each that lends its
devices, and give the agent their addresses.

```sh
paddler-trio rpc-server --addr 127.0.0.1:50052      # on the machine that lends, called far

ssh -N -o ServerAliveInterval=10 -L 50052:127.0.0.1:50052 far &             # on the agent's
paddler-trio agent --rpc 127.0.0.1:50052
paddler-trio model swap big.gguf --n-gpu-layers -1
```

* Lent devices are GPUs to the agent: they take layers only with `--n-gpu-layers`, and come before
  its own GPUs in `--tensor-split` and `--main-gpu`. The CPU is lent where there is no GPU.
* One engine at a time has a server; another agent's is told so after five seconds.
* An engine dies of a server that it loses: requests go on elsewhere or wait, the agent reports the
  address, and serves again when the server is back. A machine that vanishes is noticed within half
  a minute.
* Both sides have to be the same release of llama.cpp. `paddler-trio doctor` says whether a build
  has RPC; those that `paddler-trio setup` chooses have it.
* The protocol knows no keys and no encryption: see [security](security.md#rpc-servers).

The first line on standard output says where it serves, once it does. It ends at the first SIGTERM
or Ctrl-C, whatever it is computing, with exit code 0.
""",
    "bench": """\
Any server with OpenAI's `/v1/chat/completions` can be tested. `URL` is `host:port` or
`http[s]://host[:port][/path]`, with or without `/v1` at its end; `--tls-*` and `--key-file` are
about the first server only. Only loopback and private addresses are loaded without
`--allow-public`.

| code | |
|---|---|
| 0 | done |
| 1 | more requests failed than `--max-error-rate`, a `--fail-if` holds, or a server is silent |
| 2 | the command line is wrong; nothing was sent |
| 130 | interrupted; the results so far were reported |

What the figures mean, and how far to trust them: [load tests](bench.md).
""",
    "tree": """\
Each line is a task: its name, where it stands in the code, how often it was restarted and its last
crash. Tasks are children of the task whose nursery they live in: when a parent ends, they have
ended.
""",
}


def page() -> str:
    """The whole of ``docs/cli.md``."""
    root = typer.main.get_command(command_line())
    parts = [INTRODUCTION]
    commands = list(_commands(root, ()))
    index = (f"| [`{name}`](#{_anchor(name)}) | {_text(_help(each))} |" for name, each in commands)
    parts.append("\n".join(["| command | |", "|---|---|", *index, ""]))
    parts += [_section(name, command) for name, command in commands]
    return "\n".join(parts)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every command that runs something, by its words after ``paddler-trio``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield " ".join((*path, name)), command
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    words = ["paddler-trio", name, *(each.name.upper() for each in arguments)]
    usage = " ".join([*words, *(["[OPTIONS]"] if options else [])])
    lines = [f"## `{name}`", "", _help(command), "", "```", usage, "```", ""]
    if name in NOTES:
        lines += [NOTES[name]]
    if arguments:
        lines += [f"* `{each.name.upper()}`: {_text(each.help)}" for each in arguments] + [""]
    if options:
        lines += ["| flag | what it does | default |", "|---|---|---|"]
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
        lines.append(f"| {flags} | {_text(option.help)} | {_default(option)} |")
    return "\n".join([*lines, ""])


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if option.secondary_opts and option.default is False:
        return f"`{option.secondary_opts[0]}`"
    default = getattr(option.default, "value", option.default)
    if default in (None, False, ()):
        return ""
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _help(command: Any) -> str:
    return str(command.help or "").strip()


def _text(help_text: str | None) -> str:
    return " ".join((help_text or "").split()).replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` say whether it is up to date."""
    written = page()
    if arguments == ["--check"]:
        is_current = PAGE.exists() and PAGE.read_text() == written
        print("docs/cli.md is up to date" if is_current else "docs/cli.md is out of date")
        return 0 if is_current else 1
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
