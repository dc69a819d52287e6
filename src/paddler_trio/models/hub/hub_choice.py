"""Choose the files of a repository that make up a model, by llama.cpp's rules for ``-hf``.

A quantisation is looked for as a whole word of the path, in any case, followed by ``.`` or ``-``:
llama.cpp would take BF16 for F16. The file whose name is exactly the one that was asked for comes
before those whose names end with it, and these before all others. Without a quantisation the order
is Q4_K_M, Q8_0, the first model file. A model in several files is named by its first one. The
projection is the ``mmproj`` file in the deepest folder that is above or beside the model, with the
closest number of bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

DEFAULT_QUANTISATIONS: Final = ("Q4_K_M", "Q8_0")
MAX_PARTS: Final = 999
"""No model has more; the name of a file can claim 99,999."""

_SPLIT = re.compile(r"^(.+)-([0-9]{5})-of-([0-9]{5})$", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)
_BITS = re.compile(r"[0-9]{1,4}")
_QUANTISED = r"(?:MX|NV)?(?:I?Q|TQ|BF|FP|F)[0-9]+(?:_[A-Z0-9]+){0,4}"
_PROJECTION = re.compile(
    rf"mmproj(?![A-Z0-9])|(?:.*[-._])?mmproj(?:[-._]model)?(?:[-._]{_QUANTISED})?$",
    re.IGNORECASE | re.DOTALL,
)
"""Of a file's name: it begins with the word, or only a quantisation comes after it. A model whose
name has the word elsewhere is one all the same; so it is below."""
_NO_MODEL = re.compile(
    rf"(?:imatrix(?![A-Z0-9])|(?:mtp|eagle3|dflash|dspark)-)"
    rf"|(?!.*[-._]{_QUANTISED}[-._])(?:.*[-._])imatrix$",
    re.IGNORECASE | re.DOTALL,
)
_BETWEEN_WORDS = re.compile(r"[-./]")
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
    named = named_models(files)
    for name in wanted:
        fitting = [path for path in named.values() if is_quantised(path, name)]
        exact = [path for its_name, path in named.items() if its_name.upper() == name.upper()]
        ending = [path for path in fitting if _stem(path).upper().endswith(name.upper())]
        if found := exact or ending or fitting:
            return _choice(found[0], files)
    if quantisation is None and named:
        return _choice(next(iter(named.values())), files)
    return None


def is_quantised(path: str, quantisation: str) -> bool:
    """Return whether the file at ``path`` has this quantisation, by its name."""
    pattern = "(?<![A-Z0-9])" + re.escape(quantisation) + "[.-]"
    return re.search(pattern, path, re.IGNORECASE) is not None


def named_models(files: Iterable[str]) -> dict[str, str]:
    """The models of a repository in order: the path of each by a name that no other one has.

    That is the quantisation. Of models that have the same one, it is all that comes behind what
    their paths begin with alike: Q5_K_XL and UD-Q5_K_XL. It is in upper case, but for the path of a
    file that names no quantisation, or that differs from another one by case alone.
    """
    by_tag: dict[str, list[str]] = {}
    models = [path for path in dict.fromkeys(files) if is_nameable(path)]
    for path in models:
        by_tag.setdefault(tag_of(path), []).append(path)
    alike = {tag: _alike_chars([_stem(path) for path in paths]) for tag, paths in by_tag.items()}
    names: dict[str, str] = {}
    taken: set[str] = set()
    for path in models:
        tag, name = tag_of(path), _stem(path)
        if tag:
            name = name[alike[tag] :].upper() if len(by_tag[tag]) > 1 else tag
        names[path if name.upper() in taken else name] = path
        taken.add(name.upper())
    return names


def _alike_chars(stems: Sequence[str]) -> int:
    """Return the number of characters, in whole words and without their last word, that all
    ``stems`` begin with."""
    first, last = min(stems), max(stems)
    pairs = enumerate(zip(first, last, strict=False))
    num_alike = next((index for index, (a, b) in pairs if a != b), min(len(first), len(last)))
    words = _BETWEEN_WORDS.finditer(first, 0, num_alike)
    return max((match.end() for match in words), default=0)


def quantisations(files: Sequence[str]) -> tuple[str, ...]:
    """Return what can be chosen among, in order of appearance."""
    return tuple(name for name, path in named_models(files).items() if tag_of(path))


def is_projection(path: str) -> bool:
    """Return whether the file lets a model see images, by its name."""
    return path.endswith(_SUFFIX) and _PROJECTION.match(_last_name(path)) is not None


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
    return (
        split is not None
        and (split.count <= 1 or split.index == 1)
        and not is_projection(path)
        and _NO_MODEL.match(_last_name(path)) is None
    )


def tag_of(path: str) -> str:
    """Return the quantisation that the name of a file ends with, in upper case; empty without
    one."""
    split = split_name(path)
    match = None if split is None else _TAG.search(split.prefix)
    return "" if match is None else match[1].upper()


def _stem(path: str) -> str:
    split = split_name(path)
    return path if split is None else split.prefix


def _last_name(path: str) -> str:
    """The name of the file, without what says that it is a part."""
    return _stem(path).rpartition("/")[2]


def _bits(path: str) -> int:
    match = _BITS.search(tag_of(path))
    return 0 if match is None else int(match[0])
