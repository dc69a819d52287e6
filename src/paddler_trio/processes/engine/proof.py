"""Proof that llama.cpp runs on this machine: one real model, one real prompt, a few tokens.

A build of llama.cpp can load, answer ``llama_print_system_info`` and still die of an illegal
instruction at its first matrix product, because the compiler believed what the CPU (or the
virtual machine around it) advertised. Nothing short of decoding shows that, and decoding may end
the process. So the proof has two halves:

* the child, ``python proof.py MODEL``, decodes and prints one JSON line;
* the parent, ``prove_in_child``, starts it, bounds it in time, and turns whatever came of it, a
  signal included, into a value.

Only the standard library is imported at the top, and nothing of this package: the set-up of a
fresh machine runs this file by its path before anything else is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 256
PROMPT_TOKENS = 128
"""The tokens of the prompt at most; also what one pass may have."""
GENERATED_TOKENS = 8
PROMPT = (
    "The quick brown fox jumps over the lazy dog, twice. What does the dog say to the fox? " * 2
)
BUNDLED_MODEL = Path(__file__).resolve().parents[2] / "models" / "paddler-demo.gguf"


@dataclass(frozen=True)
class Proof:
    """The findings of one run of the child.

    Attributes:
      ok: every step worked and every logit was finite.
      tokens: prompt and generated tokens decoded.
      seconds: time from loading the model to the last token.
      system_info: llama.cpp's own list of what it was built with.
      version: of llama-cpp-python, as imported by the child.
      error: why not, in words; empty when ``ok``.
      devices: what llama.cpp can compute on here, in its own words.
      has_rpc: this build can spread a model over llama.cpp's RPC servers.
    """

    ok: bool
    tokens: int = 0
    seconds: float = 0.0
    system_info: str = ""
    version: str = ""
    error: str = ""
    devices: Sequence[str] = ()
    has_rpc: bool = False
    host_bytes: int = 0
    """The memory of this machine, as ggml says it."""


def prove(model: Path) -> Proof:
    """Decode in this process, which may not survive it.

    Args:
      model: a GGUF file; small is enough, every kernel of a pass is used once.

    Returns:
      A proof with ``ok`` true, or one whose ``error`` names the step that failed.
    """
    # As in an engine, which has loaded these when it loads llama.cpp: they bring a C++ runtime, and
    # a build with another one inside may end at its first line of log.
    for name in ("msgpack", "numpy"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import llama_cpp  # here, so that the parent's half works where the library is broken or absent

    # The bindings print every line of llama.cpp's log unless their logger asks for less.
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    began_s = time.perf_counter()
    system_info = llama_cpp.llama_print_system_info().decode().strip(" |")
    version = str(llama_cpp.__version__)
    try:
        num_decoded = _decode(llama_cpp, model)
    except _StepError as error:
        return Proof(False, system_info=system_info, version=version, error=str(error))
    seconds = time.perf_counter() - began_s
    return Proof(
        True,
        num_decoded,
        round(seconds, 3),
        system_info,
        version,
        devices=_devices(llama_cpp.llama_cpp._lib),
        has_rpc=_has_rpc(llama_cpp.llama_cpp._lib),
        host_bytes=_host_bytes(llama_cpp.llama_cpp._lib),
    )


class _StepError(Exception):
    """A step of the proof failed; the message names it."""


def _decode(llama_cpp: Any, model: Path) -> int:  # the module, which has no types
    """Load the model and decode with it; return the number of tokens decoded, or raise."""
    llama_cpp.llama_backend_init()
    handle = llama_cpp.llama_model_load_from_file(
        os.fsencode(model), llama_cpp.llama_model_default_params()
    )
    if not handle:
        raise _StepError(f"llama.cpp cannot load {model}")
    limits = llama_cpp.llama_context_default_params()
    limits.n_ctx, limits.n_batch = CONTEXT_TOKENS, PROMPT_TOKENS
    limits.n_threads = limits.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(handle, limits)
    if not context:
        raise _StepError(f"llama.cpp cannot make a context of {CONTEXT_TOKENS} tokens over {model}")

    vocabulary = llama_cpp.llama_model_get_vocab(handle)
    num_vocabulary = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
    text = PROMPT.encode()
    tokens = (llama_cpp.llama_token * CONTEXT_TOKENS)()
    num_prompt = int(
        llama_cpp.llama_tokenize(vocabulary, text, len(text), tokens, len(tokens), True, False)
    )
    num_prompt = min(num_prompt, PROMPT_TOKENS)
    if num_prompt < 1:
        raise _StepError(f"the prompt of {len(text)} bytes made {num_prompt} tokens")

    num_decoded, num_new = 0, num_prompt
    for _ in range(GENERATED_TOKENS):
        status = int(
            llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, num_new))
        )
        if status != 0:
            raise _StepError(f"llama_decode returned {status} after {num_decoded} tokens")
        num_decoded += num_new
        logits = [float(x) for x in llama_cpp.llama_get_logits_ith(context, -1)[:num_vocabulary]]
        if not all(map(math.isfinite, logits)):
            raise _StepError(f"logits are not finite after {num_decoded} tokens")
        if min(logits) == max(logits):
            raise _StepError(f"all {num_vocabulary} logits are equal after {num_decoded} tokens")
        tokens[0], num_new = logits.index(max(logits)), 1
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(handle)
    return num_decoded


def _devices(library: ctypes.CDLL) -> list[str]:
    """Return every device ggml knows of: its name and its description."""
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    words = []
    for say in (library.ggml_backend_dev_name, library.ggml_backend_dev_description):
        say.argtypes, say.restype = [ctypes.c_void_p], ctypes.c_char_p
    for index in range(library.ggml_backend_dev_count()):
        device = library.ggml_backend_dev_get(index)
        name = library.ggml_backend_dev_name(device).decode(errors="replace")
        description = library.ggml_backend_dev_description(device).decode(errors="replace")
        words.append(f"{name} ({description.strip()})")
    return words


def _host_bytes(library: ctypes.CDLL) -> int:
    library.ggml_backend_dev_by_type.argtypes = [ctypes.c_int]
    library.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    pointer = ctypes.POINTER(ctypes.c_size_t)
    library.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, pointer, pointer]
    library.ggml_backend_dev_memory.restype = None
    cpu = library.ggml_backend_dev_by_type(0)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if cpu:
        library.ggml_backend_dev_memory(cpu, ctypes.byref(free), ctypes.byref(total))
    return total.value


def _has_rpc(library: ctypes.CDLL) -> bool:
    library.ggml_backend_reg_by_name.argtypes = [ctypes.c_char_p]
    library.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    return bool(library.ggml_backend_reg_by_name(b"RPC"))


def prove_in_child(
    model: Path, *, python: Path | str = sys.executable, limit_s: float = 120
) -> Proof:
    """Run this file as a process of its own and say what came of it.

    Args:
      model: the GGUF file to decode with.
      python: the interpreter whose llama-cpp-python is meant.
      limit_s: seconds after which the child is killed; a cold disk is the slow part.

    Returns:
      The child's own proof, or one whose ``error`` names the signal, the time limit, or the last
      lines it wrote. Never raises for anything the child does.
    """
    # Backtrace: on an abort ggml attaches a debugger to itself, which takes seconds.
    # OpenMP: one thread asked for, one thread started.
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"}
    # -P: the folder of this file must not become an import path for the child.
    command = [str(python), "-P", str(Path(__file__).resolve()), str(model)]
    try:
        ended = subprocess.run(  # noqa: S603  our own file, our own interpreter
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Proof(False, error=f"no answer within {limit_s:g} s")
    except OSError as error:
        return Proof(False, error=f"{python} cannot be started: {error}")
    return read_child(
        ended.returncode, ended.stdout.decode(), ended.stderr.decode(errors="replace")
    )


def read_child(returncode: int, stdout: str, stderr: str) -> Proof:
    """Turn a child's end into a proof: its JSON line if there is one, else why there is none."""
    last_words = "".join(stderr.strip().splitlines()[-1:])
    if returncode < 0:
        detail = f": {last_words}" if last_words else ""
        return Proof(False, error=f"killed by {_name_signal(-returncode)}{detail}")
    lines = stdout.strip().splitlines()
    try:
        fields = json.loads(lines[-1]) if lines else None
        proof = Proof(**fields) if fields is not None else None
    except (ValueError, TypeError):
        proof = None
    if proof is not None and proof.ok == (returncode == 0):
        return proof
    detail = last_words or "it wrote nothing"
    return Proof(False, error=f"ended with exit status {returncode}: {detail}")


def _name_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    meaning = {
        "SIGILL": "an instruction this CPU does not run",
        "SIGSEGV": "a memory fault",
        "SIGBUS": "a memory fault",
        "SIGABRT": "llama.cpp gave up",
        "SIGKILL": "out of memory, or killed by hand",
    }.get(name)
    return f"{name} ({meaning})" if meaning else name


def main() -> int:
    """Run the child: decode, print one JSON line, exit 0 only when the proof holds."""
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else BUNDLED_MODEL
    proof = prove(model)
    sys.stdout.write(json.dumps(asdict(proof)) + "\n")
    return 0 if proof.ok else 1


if __name__ == "__main__":
    sys.exit(main())
