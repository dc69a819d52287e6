"""Settings: what an operator decides, each said in one place, the field of a class that has it::

    drain_timeout_s: Annotated[float, Setting("Milliseconds...", unit=MILLISECOND, min=0)] = 30.0

The flag, the environment variable, the key of a settings file, the help, the default that it shows
and the limits are all made of this annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin, get_type_hints

import attrs
from attrs.validators import ge, le, optional


class Kind(Enum):
    """What a value is, where its type does not tell; the command line knows how each is read."""

    ADDRESS = auto()
    SERVER = auto()
    NAME = auto()
    DEPLOYMENT = auto()
    LABELS = auto()
    SIZE = auto()
    STATE_DATABASE = auto()
    NETWORKS = auto()
    PROXIES = auto()
    HOST_NAMES = auto()
    ALIASES = auto()
    OPENAI_LIMITS = auto()
    COLLECTOR = auto()
    TENSOR_SPLIT = auto()
    RPC_SERVERS = auto()
    DRAFT_MODEL = auto()


@attrs.frozen(eq=False)
class Reading:
    """How a value is read where this takes more than its type.

    Functions in an annotation have names: one that is written there sees nothing of its module.

    Args:
      judge: a callback of typer, which is called at once; it refuses values or leaves them.
      make: turns what was given into what the field has, once the command runs.
      given: the type of the flag, if it is not that of the field.
      write: turns the field's default into that of the flag.
    """

    judge: Callable[[Any], object] | None = None
    make: Callable[[Any], object] | None = None
    given: Any = None
    write: Callable[[Any], object] | None = None


@attrs.frozen
class Unit:
    """The unit of a flag, which is a whole number: `times` or a `per`-th of that of the field."""

    times: int = 1
    per: int = 1

    def value(self, given: float) -> float:
        """Return what the field has for a number that was given."""
        return given * self.times if self.per == 1 else given / self.per

    def given(self, value: float) -> int:
        """Return the number that a user would give for a value of the field."""
        return round(value * self.per / self.times)


MILLISECOND: Final = Unit(per=1000)
MIB: Final = Unit(times=1024**2)


@attrs.frozen(eq=False)
class Setting:
    """What there is to say of one setting beside its name, its type and its default.

    Args:
      flag: with its dashes, a negation behind a slash; else it follows from the field's name.
      variable: the environment variable, if it is not the one that follows from the flag.
      unset: what it means that nobody set it, in words; then nothing is the flag's default.
      min, max: in the unit of the flag.
      words: what a user may write, and what the field has then.
    """

    help: str = ""
    flag: str = attrs.field(default="", kw_only=True)
    panel: str | None = attrs.field(default=None, kw_only=True)
    metavar: str | None = attrs.field(default=None, kw_only=True)
    variable: str | None = attrs.field(default=None, kw_only=True)
    unset: str | None = attrs.field(default=None, kw_only=True)
    min: float | None = attrs.field(default=None, kw_only=True)
    max: float | None = attrs.field(default=None, kw_only=True)
    unit: Unit | None = attrs.field(default=None, kw_only=True)
    words: Mapping[str, object] | None = attrs.field(default=None, kw_only=True)
    reading: Kind | Reading | None = attrs.field(default=None, kw_only=True)

    def flag_of(self, field: str) -> str:
        """Return the flag as a user types it, with a negation if it has one."""
        if self.flag:
            return self.flag
        stem = field.removesuffix("_s").removesuffix("_bytes") if self.unit else field
        return f"--{stem.replace('_', '-')}"

    def limits(self) -> list[Callable[[Any, attrs.Attribute[Any], Any], None]]:
        """Return validators of attrs for `min` and `max`, in the unit of the field."""
        value = (lambda given: given) if self.unit is None else self.unit.value
        bounds = ((ge, self.min), (le, self.max))
        return [validator(value(bound)) for validator, bound in bounds if bound is not None]


Hint: TypeAlias = Any
"""A type, as annotations have it."""


def words(*each: str) -> Mapping[str, str]:
    """Return words that the field has as they are written."""
    return dict(zip(each, each, strict=True))


def hints_of(form: type) -> dict[str, tuple[Hint, object]]:
    """Return the type of each annotated field, and what is said of it beside the type, or None."""
    found = {}
    for name, hint in get_type_hints(form, include_extras=True).items():
        is_annotated = get_origin(hint) is Annotated
        found[name] = get_args(hint)[:2] if is_annotated else (hint, None)
    return found


def within_limits(form: type, fields: Sequence[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Give fields the limits of their settings as validators; a `field_transformer` of attrs."""
    said = {name: about for name, (_, about) in hints_of(form).items()}
    limited = []
    for field in fields:
        about = said.get(field.name)
        limits = about.limits() if isinstance(about, Setting) else []
        limited.append(field.evolve(validator=optional(limits)) if limits else field)
    return limited
