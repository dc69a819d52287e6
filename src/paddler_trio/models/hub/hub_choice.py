"""Choose the files of a repository that make up a model, by llama.cpp's rules for ``-hf``.

A quantisation is looked for anywhere in the path, in any case, followed by ``.`` or ``-``. Without
one the order is Q4_K_M, Q8_0, the first model file. A model in several files is named by its first
one. The projection is the ``mmproj`` file in the deepest folder that is above or beside the model,
with the closest number of bits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

DEFAULT_QUANTISATIONS: Final = ("Q4_K_M", "Q8_0")
NOT_A_MODEL: Final = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
MAX_PARTS: Final = 999
"""No model has more; the name of a file can claim 99,999."""

_SPLIT = re.compile(r"^(.+)-([0-9]{5})-of-([0-9]{5})$", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)
_BITS = re.compile(r"[0-9]{1,4}")
_SUFFIX = ".gguf"


@attrs.frozen
class SplitName:
    """A name read as a part of a model in several files; ``count`` is 1 for a whole model.

    Args:
      prefix: without the part's number and the suffix.
      index: from 1.
    """

    prefix: str
    index: int
    count: int


@attrs.frozen
class HubChoice:
    """The files to load; paths inside the repository.

    Args:
      model: the model's file, or the first of its parts.
      parts: all of them, in order.
      projection: what lets the model see images; None if the repository has none that fits.
    """

    model: str
    parts: tuple[str, ...]
    projection: str | None


def split_name(path: str) -> SplitName | None:
    """Return ``path`` as a part of a model; None if it is no GGUF file."""
    if not path.endswith(_SUFFIX):
        return None
    stem = path.removesuffix(_SUFFIX)
    match = _SPLIT.match(stem)
    if match is None:
        return SplitName(stem, 1, 1)
    return SplitName(match[1], int(match[2]), int(match[3]))


def part_names(path: str) -> tuple[str, ...]:
    """Return every file of the model that ``path`` is, or is a part of; in order, first part
    first."""
    split = split_name(path)
    if split is None or split.count <= 1 or split.count > MAX_PARTS:
        return (path,)
    return tuple(
        f"{split.prefix}-{index:05}-of-{split.count:05}{_SUFFIX}"
        for index in range(1, split.count + 1)
    )


def choose(files: Sequence[str], quantisation: str | None = None) -> HubChoice | None:
    """Return the model of a repository with these paths; None if it has none that fits."""
    wanted = DEFAULT_QUANTISATIONS if quantisation is None else (quantisation,)
    models = [path for path in files if is_nameable(path)]
    for name in wanted:
        for path in models:
            if is_quantised(path, name):
                return _choice(path, files)
    if quantisation is None and models:
        return _choice(models[0], files)
    return None


def is_quantised(path: str, quantisation: str) -> bool:
    """Return whether the file at ``path`` has this quantisation, by its name."""
    return re.search(re.escape(quantisation) + "[.-]", path, re.IGNORECASE) is not None


def quantisations(files: Sequence[str]) -> tuple[str, ...]:
    """Return what can be chosen among, in order of appearance and without repetition."""
    tags = (tag_of(path) for path in files if is_nameable(path))
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def is_projection(path: str) -> bool:
    """Return whether the file lets a model see images, by its name."""
    return path.endswith(_SUFFIX) and "mmproj" in path


def projection_for(model: str, files: Sequence[str]) -> str | None:
    """Return the ``mmproj`` file that fits ``model`` best."""
    folder = model.split("/")[:-1]
    best: tuple[int, int] | None = None
    chosen = None
    for path in files:
        if not is_projection(path):
            continue
        its_folder = path.split("/")[:-1]
        if folder[: len(its_folder)] != its_folder:
            continue
        rank = (len(its_folder), -abs(_bits(path) - _bits(model)))
        if best is None or rank > best:
            best, chosen = rank, path
    return chosen


def _choice(model: str, files: Sequence[str]) -> HubChoice:
    return HubChoice(model, part_names(model), projection_for(model, files))


def is_nameable(path: str) -> bool:
    """Return whether it is a whole model or the first part of one."""
    split = split_name(path)
    name = path.rpartition("/")[2]
    return (
        split is not None
        and (split.count <= 1 or split.index == 1)
        and not any(word in name for word in NOT_A_MODEL)
    )


def tag_of(path: str) -> str:
    """Return the quantisation that the name of a file ends with, in upper case; empty without
    one."""
    split = split_name(path)
    match = None if split is None else _TAG.search(split.prefix)
    return "" if match is None else match[1].upper()


def _bits(path: str) -> int:
    match = _BITS.search(tag_of(path))
    return 0 if match is None else int(match[0])
