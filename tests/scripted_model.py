"""A language model that writes what it was told to: a real one, in a file, that any engine runs.

Its next token follows from the last one alone: its one layer adds nothing, and the row of a token
in the output is the embedding of those that it follows. A script is a chain of tokens that no other
script has, the first of them a control token, with which the chat template ends a prompt. So the
template chooses the script by what the request has, and all between is as with other models:
templates, tokens, grammars, sampling, calls that are read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import gguf
import numpy as np

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

WIDTH: Final = 128
"""So many signs tell tokens apart: those of three thousand are alike by half of them at most."""
STATE: Final = 4
RANK: Final = 4
CERTAINTY: Final = 60.0
"""The logit of the token that follows; no other one has half of it."""
N_CTX_TRAIN: Final = 131_072
PIECE: Final = 12
"""Characters of a token of a script, or more where another one reads the same."""
END: Final = "<|im_end|>"
PROMPT_END: Final = "{{- '<|im_start|>assistant\\n' -}}"


@attrs.frozen
class Script:
    """What a model writes when.

    Args:
      by_phrase: of a request whose last text of the user has this in it.
      by_results: of another one with tools, by how many results of tools it has; the last for all
        that have more.
      otherwise: of all other requests.
    """

    by_results: Sequence[str] = ()
    by_phrase: Mapping[str, str] = attrs.field(factory=dict)
    otherwise: str = "Noted."

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all of them, in the order in which the template counts them."""
        return (*self.by_phrase.values(), *self.by_results, self.otherwise)


def call(name: str, arguments: str, thought: str = "") -> str:
    """Return a call as the bundled model's template has it, perhaps behind a thought.

    ``arguments`` are JSON.
    """
    before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return f'{before}<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def write_scripted_model(path: Path, script: Script) -> Path:
    """Write the model; the words of prompts are those of the bundled one."""
    known = {
        name: field.contents() for name, field in gguf.GGUFReader(BUNDLED_MODEL).fields.items()
    }
    tokens = list(known[gguf.Keys.Tokenizer.LIST])
    kinds = list(known[gguf.Keys.Tokenizer.TOKEN_TYPE])
    end = tokens.index(END)
    follows: dict[int, int] = {}
    taken = set(tokens)
    for number, text in enumerate(script.texts):
        before = len(tokens)
        tokens.append(_start(number))
        kinds.append(gguf.TokenType.CONTROL)
        for piece in _pieces(text, taken):
            follows[before] = before = len(tokens)
            tokens.append(piece)
            kinds.append(gguf.TokenType.NORMAL)
        follows[before] = end
    writer = gguf.GGUFWriter(path, "mamba")  # whose time grows with the prompt, not with its square
    writer.add_name("scripted")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(2 * WIDTH)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(known["tokenizer.ggml.pre"])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(known[gguf.Keys.Tokenizer.MERGES])
    writer.add_bos_token_id(known["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_template(known[gguf.Keys.Tokenizer.CHAT_TEMPLATE], script))
    _add_tensors(writer, len(tokens), follows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _start(number: int) -> str:
    return f"<|script_{number}|>"


def _pieces(text: str, taken: set[str]) -> list[str]:
    """Cut a text into tokens that have not been there, as byte-level vocabularies write them."""
    alphabet = _alphabet()
    pieces = _cut("".join(alphabet[byte] for byte in text.encode()), taken)
    assert pieces is not None, f"all of its ends are other scripts' ends: {text[-40:]!r}"
    return pieces


def _cut(written: str, taken: set[str]) -> list[str] | None:
    if not written:
        return []
    for size in (*range(PIECE, len(written) + 1), *range(min(PIECE, len(written)), 0, -1)):
        piece = written[:size]
        if piece not in taken:
            taken.add(piece)
            rest = _cut(written[size:], taken)
            if rest is not None:
                return [piece, *rest]
            taken.remove(piece)
    return None


def _alphabet() -> list[str]:
    """Return the character for each byte: itself if it is seen, else one from 256 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = iter(range(256, 512))
    return [chr(byte if byte in seen else next(unseen)) for byte in range(256)]


def _template(bundled: str, script: Script) -> str:
    """Return the bundled template with the choice of a script at the end of each prompt."""
    assert bundled.count(PROMPT_END) == 1
    lines = ["{%- set is_asked = namespace(results=0, text='') -%}"]
    lines += [
        "{%- for message in messages -%}",
        "{%- if message.role == 'tool' -%}",
        "{%- set is_asked.results = is_asked.results + 1 -%}",
        "{%- elif message.role == 'user' -%}",
        "{%- set is_asked.text = text_of(message.content) -%}",
        "{%- endif -%}",
        "{%- endfor -%}",
    ]
    choices = [f"{phrase!r} in is_asked.text" for phrase in script.by_phrase]
    last = len(script.by_results) - 1
    choices += [
        f"tools and is_asked.results {'==' if each < last else '>='} {each}"
        for each in range(last + 1)
    ]
    for number, condition in enumerate(choices):
        word = "elif" if number else "if"
        lines += [f"{{%- {word} {condition} -%}}", f"{{{{- '{_start(number)}' -}}}}"]
    otherwise = f"{{{{- '{_start(len(choices))}' -}}}}"
    lines += ["{%- else -%}", otherwise, "{%- endif -%}"] if choices else [otherwise]
    before, _, rest = bundled.partition(PROMPT_END)
    skipped = rest[rest.rindex("{%- endif -%}") :]  # the switch of reasoning: this one has none
    return before + PROMPT_END + "".join(lines) + skipped


def _add_tensors(writer: gguf.GGUFWriter, number: int, follows: Mapping[int, int]) -> None:
    random = np.random.default_rng(7)
    own, next_of = random.choice(np.array([-1.0, 1.0], np.float32), (2, number, WIDTH))
    signs, output = own.copy(), np.zeros((number, WIDTH), np.float32)
    for before, after in follows.items():  # all tokens that end a script look alike
        signs[before] = next_of[after]
        output[after] = next_of[after] * (CERTAINTY / WIDTH)
    tensors = {"token_embd.weight": signs, "output.weight": output}
    tensors["output_norm.weight"] = np.ones(WIDTH, np.float32)
    tensors["blk.0.attn_norm.weight"] = np.ones(WIDTH, np.float32)
    for name, *shape in (
        *(("ssm_in.weight", 4 * WIDTH, WIDTH), ("ssm_conv1d.weight", 2 * WIDTH, 4)),
        *(("ssm_conv1d.bias", 2 * WIDTH), ("ssm_x.weight", RANK + 2 * STATE, 2 * WIDTH)),
        *(("ssm_dt.weight", 2 * WIDTH, RANK), ("ssm_dt.bias", 2 * WIDTH)),
        *(("ssm_a", 2 * WIDTH, STATE), ("ssm_d", 2 * WIDTH), ("ssm_out.weight", WIDTH, 2 * WIDTH)),
    ):
        tensors[f"blk.0.{name}"] = np.zeros(shape, np.float32)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
