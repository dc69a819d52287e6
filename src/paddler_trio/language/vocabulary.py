"""The model's vocabulary, opened without the weights.

Text is turned into tokens beside the decode loop, not in it: a preparation process opens the model
file a second time with ``vocab_only``, which costs a few megabytes; the engine only ever sees ids.

All methods block for as long as the text is long, so they belong into preparation processes; any
number of threads may use one vocabulary. Closing is safe at any moment: a thread that is still
inside llama.cpp keeps the model until it comes back, later calls are refused.

llama.cpp's generic pre-tokenizer recurses for every character of a word and overruns the stack at
about 20 000 of them (measured, 8 MB), which would end the process; such runs are cut. Ids that do
not exist make it throw through its C interface, so they are refused here.

llama.cpp logs through one callback of the whole process, which is set here, too.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import addressof, c_char, c_void_p, create_string_buffer
from pathlib import Path
from typing import TypeAlias

import attrs
import structlog

from paddler_trio.errors import ModelFileError, PaddlerError
from paddler_trio.language.templates.token_escaping import ESCAPE_MARK, ControlTokenEscaping
from paddler_trio.system.llama_library import lib

log = structlog.get_logger("vocabulary")

MAX_TEXT_BYTES = 2**30  # llama.cpp counts bytes and tokens in 32 bits
_MAX_RUN_CHARS = 4096
_CHANGE = re.compile(r"\s\S|\S\s")
_WARNING, _ERROR = 3, 4  # levels of llama.cpp's log
_LONG_RUN = re.compile(rf"\S{{{_MAX_RUN_CHARS}}}|\s{{{_MAX_RUN_CHARS}}}")

_ModelHandle: TypeAlias = int
_VocabHandle: TypeAlias = int


class TokenizationError(PaddlerError):
    """A text or a token id that this vocabulary cannot take."""


@attrs.frozen
class InfillTokens:
    """Models are told a gap with these; llama.cpp knows them by their numbers in the file, else
    by the names that families of models give them. None: this vocabulary has none."""

    prefix: int | None
    suffix: int | None
    middle: int | None
    repository: int | None = None
    separator: int | None = None
    padding: int | None = None

    @property
    def known(self) -> frozenset[int]:
        tokens = attrs.astuple(self)
        return frozenset(token for token in tokens if token is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those without which there is no infill."""
        needed = {"prefix": self.prefix, "suffix": self.suffix, "middle": self.middle}
        return tuple(name for name, token in needed.items() if token is None)


class Vocabulary:
    """Tokens of one model file, its metadata and its chat templates.

    ``metadata`` has every scalar of the file as text; ``control_texts`` are the texts that
    ``parse_special`` turns into control tokens; ``escaping`` guards against them. ``kind`` is a
    number of llama.cpp's ``llama_vocab_type``.
    """

    def __init__(self, model: _ModelHandle, path: Path) -> None:
        """Take ownership of an open model handle; use ``load``."""
        self.path = path
        self._model = model
        self._vocab: _VocabHandle = lib.llama_model_get_vocab(model)
        self._lock = threading.Lock()
        self._inside = 0
        self._closed = False
        self.metadata: dict[str, str] = _metadata_of(model)
        self.n_tokens: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_params: int = lib.llama_model_n_params(model)
        self.size_bytes: int = lib.llama_model_size(model)
        """Of the weights, although they are not loaded here."""
        self.kind: int = lib.llama_vocab_type(self._vocab)
        kind = self.kind
        self._cuts_long_runs = kind == lib.LLAMA_VOCAB_TYPE_BPE
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self._adds_eos: bool = lib.llama_vocab_get_add_eos(self._vocab)
        self.bos_token = self._known_token(lib.llama_vocab_bos(self._vocab))
        self.eos_token = self._known_token(lib.llama_vocab_eos(self._vocab))
        separator = self._known_token(lib.llama_vocab_sep(self._vocab))
        ends_with_it = kind == lib.LLAMA_VOCAB_TYPE_WPM  # and is a text's end there
        has_two = lib.llama_vocab_get_add_sep(self._vocab) and not ends_with_it
        self.pair_separator = () if separator is None or not has_two else (separator,)
        """What comes between two texts beside the tokens that end the first one."""
        self.infill_tokens = InfillTokens(
            prefix=self._known_token(lib.llama_vocab_fim_pre(self._vocab)),
            suffix=self._known_token(lib.llama_vocab_fim_suf(self._vocab)),
            middle=self._known_token(lib.llama_vocab_fim_mid(self._vocab)),
            repository=self._known_token(lib.llama_vocab_fim_rep(self._vocab)),
            separator=self._known_token(lib.llama_vocab_fim_sep(self._vocab)),
            padding=self._known_token(lib.llama_vocab_fim_pad(self._vocab)),
        )
        self.bos_text = self._text_of(self.bos_token)
        self.eos_text = self._text_of(self.eos_token)
        self.nl_text = self._text_of(self._known_token(lib.llama_vocab_nl(self._vocab)))
        controls = self._find_controls()
        self.control_texts = frozenset(controls.values())
        self._control_tokens = frozenset(controls)
        self.end_tokens = tuple(
            token for token in sorted(controls) if lib.llama_vocab_is_eog(self._vocab, token)
        )
        """The control tokens with which the model ends its answer."""
        self.escaping = self._make_escaping(controls)
        self.longest_token_chars = self._find_longest()
        """No token stands for more characters of a text; 0 where tokens do not bound that."""

    @classmethod
    def load(cls, path: Path | str) -> Vocabulary:
        """Open the vocabulary of a GGUF file; milliseconds to about a second.

        llama.cpp reports what it finds through its process-wide log callback.

        Raises:
          ModelFileError: no such file, not a GGUF file, or one without a tokenizer.
        """
        path = Path(path)
        if not path.is_file():
            raise ModelFileError(f"model file {path} does not exist")
        params = lib.llama_model_default_params()
        params.vocab_only = True
        no_device = (c_void_p * 1)()  # a list that ends at once: no GPU is opened for it
        params.devices = addressof(no_device)
        model: _ModelHandle | None = lib.llama_model_load_from_file(bytes(path), params)
        if not model:
            raise ModelFileError(f"model file {path} is not a GGUF file that llama.cpp can read")
        vocab = lib.llama_model_get_vocab(model)
        if lib.llama_vocab_type(vocab) == lib.LLAMA_VOCAB_TYPE_NONE:
            lib.llama_model_free(model)
            raise ModelFileError(f"model file {path} has no tokenizer")
        return cls(model, path)

    def close(self) -> None:
        """Give the file back, at the latest when the last thread inside returns. Idempotent."""
        with self._lock:
            free_now = not self._closed and self._inside == 0
            self._closed = True
        if free_now:
            lib.llama_model_free(self._model)

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context the model was trained with; 0 if it is not in the file."""
        return self._number_of("context_length")

    @property
    def n_embd(self) -> int:
        """Width of the model's vectors; 0 if it is not in the file."""
        return self._number_of("embedding_length")

    def _number_of(self, key: str) -> int:
        architecture = self.metadata.get("general.architecture", "")
        number = self.metadata.get(f"{architecture}.{key}", "")
        return int(number) if number.isdecimal() else 0

    def chat_template(self, name: str | None = None) -> str | None:
        """Jinja source of the default template, or of a named one such as ``tool_use``."""
        key = "tokenizer.chat_template"
        return self.metadata.get(key if name is None else f"{key}.{name}")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text of any length.

        Args:
          text: without lone surrogates, which have no bytes in UTF-8.
          add_special: put the tokens around it that the model file asks for, such as BOS.
          parse_special: read the texts of control tokens as those tokens.

        Raises:
          TokenizationError: not encodable, or beyond ``MAX_TEXT_BYTES``.
          ModelFileError: the vocabulary is closed.
        """
        parts = _cut_long_runs(text) if self._cuts_long_runs else [text]
        with self.open_handle() as vocab:
            if len(parts) == 1:
                return _tokenize(vocab, text, add_special, parse_special)
            tokens = [t for part in parts for t in _tokenize(vocab, part, False, parse_special)]
        if add_special and self.adds_bos and self.bos_token is not None:
            tokens.insert(0, self.bos_token)
        if add_special and self._adds_eos and self.eos_token is not None:
            tokens.append(self.eos_token)
        return tokens

    def tokenize_prompt(self, rendered: str) -> list[int]:
        """Token ids of a prompt: special tokens parsed except in escaped texts, never two BOS.

        BOS comes first where the model file asks for it, no matter whether the template printed it
        too. EOS is never added, since the answer is still to come.

        Raises:
          TokenizationError, ModelFileError: as ``tokenize``.
        """
        return self.with_bos(self.tokenize_part(rendered))

    def tokenize_part(self, rendered: str) -> list[int]:
        """Token ids of a part of a prompt: as ``tokenize_prompt``, but BOS is not looked at."""
        tokens: list[int] = []
        for span in self.escaping.cut(rendered):
            found = self.tokenize(span.text, add_special=False, parse_special=span.parse_special)
            if not span.parse_special and not self._control_tokens.isdisjoint(found):
                # Some vocabularies assemble a control token from its characters.
                found = [
                    token
                    for piece in span.pieces
                    for token in self.tokenize(piece, add_special=False, parse_special=False)
                ]
            tokens += found
        return tokens

    def tokenize_text(self, text: str) -> list[int]:
        """Token ids of a text that can have no control token, whatever it spells.

        Raises:
          TokenizationError, ModelFileError: as ``tokenize``.
        """
        tokens = self.tokenize(text, add_special=False, parse_special=False)
        if self._control_tokens.isdisjoint(tokens):
            return tokens
        # Some vocabularies assemble a control token from its characters, and a few one of infill
        # from a part of them and a blank of their own: that one is left out.
        pieces = self.escaping.escape(text).split(ESCAPE_MARK)
        return [
            token
            for piece in pieces
            if piece
            for token in self.tokenize(piece, add_special=False, parse_special=False)
            if token not in self.infill_tokens.known
        ]

    def with_bos(self, tokens: list[int]) -> list[int]:
        """A prompt with one BOS if the model file asks for it, and with never more than one."""
        if self.bos_token is None:
            return tokens
        n_leading_bos = next(
            (i for i, token in enumerate(tokens) if token != self.bos_token), len(tokens)
        )
        if n_leading_bos > 1:
            return tokens[n_leading_bos - 1 :]
        if n_leading_bos == 0 and self.adds_bos:
            return [self.bos_token, *tokens]
        return tokens

    def token_bytes(self, token: int, *, special: bool) -> bytes:
        """The bytes a token stands for, often a part of a character.

        Control tokens give their text if ``special``, else nothing.

        Raises:
          TokenizationError: no such token.
          ModelFileError: the vocabulary is closed.
        """
        with self.open_handle() as vocab:
            self._check(token)
            return _piece_of(vocab, token, special)

    def is_end_of_generation(self, token: int) -> bool:
        """Return whether the model ends its answer with this token."""
        with self.open_handle() as vocab:
            self._check(token)
            return bool(lib.llama_vocab_is_eog(vocab, token))

    @contextmanager
    def open_handle(self) -> Iterator[_VocabHandle]:
        """llama.cpp's own handle, valid inside the block, for calls that need one.

        Raises:
          ModelFileError: the vocabulary is closed.
        """
        with self._lock:
            if self._closed:
                raise ModelFileError(f"the vocabulary of {self.path} is closed")
            self._inside += 1
        try:
            yield self._vocab
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            free_now = self._closed and self._inside == 0
        if free_now:
            lib.llama_model_free(self._model)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise TokenizationError(f"token {token} is not one of the {self.n_tokens} tokens")

    def _known_token(self, token: int) -> int | None:
        return token if 0 <= token < self.n_tokens else None

    def _text_of(self, token: int | None) -> str:
        if token is None:
            return ""
        return _piece_of(self._vocab, token, True).decode("utf-8", errors="replace")

    def _find_controls(self) -> dict[int, str]:
        """Some files have the tokens of an infill as user defined ones, which any text becomes."""
        of_infill = self.infill_tokens.known
        wanted = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        texts = {
            token: lib.llama_vocab_get_text(self._vocab, token).decode("utf-8", errors="replace")
            for token in range(self.n_tokens)
            if token in of_infill or lib.llama_vocab_get_attr(self._vocab, token) & wanted
        }
        return {token: text for token, text in texts.items() if len(text) > 1}

    def _find_longest(self) -> int:
        if self.kind not in (lib.LLAMA_VOCAB_TYPE_BPE, lib.LLAMA_VOCAB_TYPE_SPM):
            return 0  # others leave out blanks, or have whole words as one unknown token
        read = lib.llama_vocab_get_text
        return max((len(read(self._vocab, token)) for token in range(self.n_tokens)), default=0)

    def _make_escaping(self, controls: Mapping[int, str]) -> ControlTokenEscaping:
        def with_attribute(wanted: int) -> list[str]:
            read = lib.llama_vocab_get_attr
            return [text for token, text in controls.items() if read(self._vocab, token) & wanted]

        return ControlTokenEscaping(
            controls.values(),
            strips_left=with_attribute(lib.LLAMA_TOKEN_ATTR_LSTRIP),
            strips_right=with_attribute(lib.LLAMA_TOKEN_ATTR_RSTRIP),
        )


def _cut_long_runs(text: str) -> list[str]:
    """Cut where a run without a change between blank and not blank gets dangerously long."""
    half = _MAX_RUN_CHARS // 2  # a run that is too long fills at least one such block
    blocks = range(0, len(text) - half + 1, half)
    if all(_CHANGE.search(text, start, start + half) for start in blocks):
        return [text]
    parts: list[str] = []
    start = 0
    for run in _LONG_RUN.finditer(text):
        parts.append(text[start : run.end()])
        start = run.end()
    parts.append(text[start:])
    return [part for part in parts if part] or [""]


def _tokenize(vocab: _VocabHandle, text: str, add_special: bool, parse_special: bool) -> list[int]:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        message = f"text has a lone surrogate at character {error.start}, which is no character"
        raise TokenizationError(message) from error
    if len(encoded) > MAX_TEXT_BYTES:
        message = f"text has {len(encoded)} bytes, the limit is {MAX_TEXT_BYTES}"
        raise TokenizationError(message)
    # A guess that nearly always suffices; if not, llama.cpp answers how many it needs.
    capacity = len(encoded) // 2 + 8
    while True:
        buffer = (lib.llama_token * capacity)()
        count: int = lib.llama_tokenize(
            vocab, encoded, len(encoded), buffer, capacity, add_special, parse_special
        )
        if count >= 0:
            return list(buffer[:count])
        if -count <= capacity:
            raise TokenizationError(f"text of {len(encoded)} bytes cannot be tokenized")
        capacity = -count


def _piece_of(vocab: _VocabHandle, token: int, special: bool) -> bytes:
    capacity = 64
    while True:
        buffer = create_string_buffer(capacity)
        count: int = lib.llama_token_to_piece(vocab, token, buffer, capacity, 0, special)
        if count >= 0:
            return buffer.raw[:count]
        capacity = -count


def _metadata_of(model: _ModelHandle) -> dict[str, str]:
    """Every scalar of the file, as llama.cpp writes it; arrays are left out."""
    read_key = lib.llama_model_meta_key_by_index
    read_value = lib.llama_model_meta_val_str_by_index
    metadata: dict[str, str] = {}
    for index in range(lib.llama_model_meta_count(model)):
        texts: list[str] = []
        for read in (read_key, read_value):
            buffer = (c_char * 256)()
            length: int = read(model, index, buffer, len(buffer))
            if length >= len(buffer):
                buffer = create_string_buffer(length + 1)
                read(model, index, buffer, len(buffer))
            texts.append(buffer.value.decode("utf-8", errors="replace"))
        key, value = texts
        metadata[key] = value
    return metadata


# ------------------------------------------------------------------------------ llama.cpp's log


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: object) -> None:
    line = text.decode(errors="replace").rstrip()
    if line.strip(". "):
        write = log.warning if level in (_WARNING, _ERROR) else log.debug
        write("llama.cpp", text=line)


def route_llama_log() -> None:
    """Write llama.cpp's log to that of this process from now on, and print nothing; idempotent."""
    lib.llama_log_set(_log, None)


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _print(level: int, text: bytes, _: object) -> None:
    if level in (_WARNING, _ERROR):
        os.write(2, text)


def print_llama_log() -> None:
    """Print its warnings and errors to standard error from now on; for child processes."""
    lib.llama_log_set(_print, None)
