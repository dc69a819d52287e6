"""Verdicts in words that operators act on.

needs 12.3 GiB on host, 9.1 GiB are available; context-size 8192 fits, or q8_0 KV, or 20 of 33
layers on the GPU
"""

from __future__ import annotations

from collections.abc import Iterable

from paddler_trio.scheduler.fit.fit_suggestions import Change, Suggestion
from paddler_trio.scheduler.fit.fit_values import Shortage

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def bytes_words(num_bytes: int) -> str:
    """Return a number of bytes in words: in the largest unit of which there is one, with three
    digits."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    value = float(num_bytes)
    for unit in _UNITS:
        value /= 1024
        if abs(value) < 1000 or unit == _UNITS[-1]:
            break
    return f"{value:.{max(0, 3 - len(str(int(abs(value)))))}f} {unit}"


def gpu_hint(n_gpu_layers: int, *, gpus: Iterable[str], devices: Iterable[str]) -> str:
    """Return why a GPU of the machine computes nothing of a model, and what to do; empty if it
    computes something, or there is none.

    Args:
      gpus: the names of those that the machine has.
      devices: as llama.cpp calls them, the host's memory aside: none if it cannot use any.
    """
    names = ", ".join(dict.fromkeys(name or "a GPU" for name in gpus))
    if not names:
        return ""
    if not any(devices):
        return (
            f"the machine has {names}, and this build of llama.cpp uses no GPU: `paddler-trio "
            "setup` on it builds one that does"
        )
    if n_gpu_layers:
        return ""
    return (
        f"the machine has {names}, and no layer is on it: set n-gpu-layers to -1 for all of them, "
        "or to auto for as many as fit"
    )


def refusal_words(
    shortages: Iterable[Shortage], suggestions: Iterable[Suggestion], *, n_layers: int
) -> str:
    """Return why a model does not fit, and what would, in words."""
    short = "; ".join(
        f"needs {bytes_words(each.needed_bytes)} on {each.device}, "
        f"{bytes_words(each.available_bytes)} are available"
        for each in shortages
    )
    return f"{short}; {suggestion_words(suggestions, n_layers=n_layers)}"


def suggestion_words(suggestions: Iterable[Suggestion], *, n_layers: int) -> str:
    """Return what would fit, in words."""
    words = [_one(suggestion, n_layers) for suggestion in suggestions]
    if not words:
        return "no smaller context, KV cache, number of layers or slots found that fits"
    head, *others = words
    verb = "fit" if head.endswith("layers on the GPU") or " slots" in head else "fits"
    return ", or ".join([f"{head} {verb}", *others])


def _one(suggestion: Suggestion, n_layers: int) -> str:
    return " with ".join(_change(change, suggestion, n_layers) for change in suggestion.changes)


def _change(change: Change, suggestion: Suggestion, n_layers: int) -> str:
    shape = suggestion.shape
    match change:
        case Change.CONTEXT_SIZE:
            return f"context-size {shape.context_size}"
        case Change.KV_DTYPE:
            return f"{shape.k_cache_dtype.lower()} KV"
        case Change.GPU_LAYERS:
            layers = n_layers if shape.n_gpu_layers < 0 else shape.n_gpu_layers
            return f"{layers} of {n_layers} layers on the GPU"
        case Change.SLOTS:
            return f"{shape.slots} slot{'' if shape.slots == 1 else 's'}"
