"""Flags of commands, made of the fields of classes: `with_flags` is the way from one to the other.

A field is a flag if its annotation has a `Setting`, or an option of typer's. A parameter of a
command may be such a class, or `Given` of one, which is read when the command asks for it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import attrs
import typer
from typer.models import OptionInfo

from paddler_trio.errors import ConfigurationError
from paddler_trio.setting import Hint, Reading, Setting, hints_of

C = TypeVar("C")


@attrs.frozen
class _Flag:
    """A flag of a class: `parameter` is its name among the parameters of a command."""

    field: str
    parameter: str
    annotation: Hint
    default: object
    setting: Setting | None

    @property
    def typed(self) -> str:
        return f"--{self.parameter.replace('_', '-')}"

    def value(self, given: Any) -> object:
        """Return what the field has for what was given."""
        setting = self.setting
        if setting is None or given is None:
            return given
        if setting.words is not None:
            return setting.words[given]
        if setting.unit is not None and isinstance(given, int | float):
            return setting.unit.value(given)
        make = _reading(setting).make
        return given if make is None else make(given)


@attrs.frozen
class _Group:
    """A field that is a class of flags itself; if it may be None, it is unless it is asked for."""

    field: str
    form: type
    is_optional: bool


class Given(Generic[C]):
    """The values that were given for the flags of a class, as they were given."""

    def __init__(self, form: type[C], values: Mapping[str, object]) -> None:
        self._form = form
        self._values = values

    def __contains__(self, parameter: str) -> bool:
        """Return whether a flag has a value, be it its default."""
        return self._values[parameter] is not None

    def read(self, **others: object) -> C:
        """Make the value, with values for `others` of its fields, which have no flags.

        Errors:
          typer.BadParameter: flags that do not go together.
          ConfigurationError: what only this machine can know is otherwise.
        """
        value: C = _read(self._form, self._values, **others)
        return value


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of all classes among its parameters, each in its place."""
    signature = inspect.signature(command, eval_str=True)
    forms = {
        each.name: form
        for each in signature.parameters.values()
        if (form := _form_of(each.annotation)) is not None
    }
    read_later = {name for name in forms if _origin(signature.parameters[name].annotation) is Given}
    names = {name: [flag.parameter for flag in _flags(form)] for name, form in forms.items()}

    @functools.wraps(command)
    def with_values(**given: Any) -> None:
        for name, form in forms.items():
            values: Given[Any] = Given(form, {each: given.pop(each) for each in names[name]})
            given[name] = values if name in read_later else _read_now(values)
        command(**given)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        for parameter in (_parameters(forms[each.name]) if each.name in forms else [each])
    ]
    with_values.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_values.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_values


def _read_now(values: Given[Any]) -> object:
    try:
        return values.read()
    except ConfigurationError as error:
        flag = str(error).partition(" ")[0]
        raise typer.BadParameter(str(error), param_hint=flag) from error


def _form_of(annotation: Hint) -> type | None:
    """Return the class of flags that a parameter stands for; None if it is none."""
    form = get_args(annotation)[0] if _origin(annotation) is Given else annotation
    is_form = isinstance(form, type) and attrs.has(form) and any(_flags(form))
    return form if is_form else None


def _parameters(form: type) -> Iterator[inspect.Parameter]:
    for flag in _flags(form):
        yield inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=flag.default,
            annotation=flag.annotation,
        )


def _flags(form: type) -> Iterator[_Flag]:
    """All flags of a class, those of its groups in their places."""
    for part in _parts(form):
        yield from (part,) if isinstance(part, _Flag) else _flags(part.form)


@functools.cache
def _parts(form: type[Any]) -> tuple[_Flag | _Group, ...]:
    hints = hints_of(form)
    parts: list[_Flag | _Group] = []
    for field in attrs.fields(form):
        hint, about = hints[field.name]
        plain = _without_none(hint)
        if isinstance(about, Setting):
            parts.append(_setting_flag(field, plain, about))
        elif isinstance(about, OptionInfo):
            default = inspect.Parameter.empty if field.default is attrs.NOTHING else field.default
            parts.append(_Flag(field.name, field.name, _annotated(hint, about), default, None))
        elif isinstance(plain, type) and attrs.has(plain) and any(_flags(plain)):
            parts.append(_Group(field.name, plain, is_optional=plain is not hint))
    return tuple(parts)


def _setting_flag(field: attrs.Attribute[Any], plain: Hint, setting: Setting) -> _Flag:
    typed = setting.flag_of(field.name)
    default = None if setting.unset is not None else _default_given(field.default, setting)
    reading = _reading(setting)
    kind: Hint = reading.given or plain
    if setting.words is not None:
        kind = _choice(setting.words)
    elif setting.unit is not None:
        kind = int
    elif _origin(kind) in (tuple, list):
        kind = list[str]
    if default is None:
        kind = kind | None
    option = typer.Option(
        typed,
        help=setting.help or None,
        rich_help_panel=setting.panel,
        metavar=setting.metavar,
        envvar=setting.variable,
        show_default=setting.unset or True,
        min=setting.min,
        max=setting.max,
        callback=reading.judge,
    )
    parameter = typed.partition("/")[0].removeprefix("--").replace("-", "_")
    return _Flag(field.name, parameter, _annotated(kind, option), default, setting)


def _default_given(default: object, setting: Setting) -> object:
    """Return what a user would give for the default of a field; None if that is nothing."""
    if isinstance(default, attrs.Factory) or default in (attrs.NOTHING, ()):  # type: ignore[arg-type]
        return None
    if (write := _reading(setting).write) is not None:
        return write(default)
    if setting.words is not None:
        return next(word for word, value in setting.words.items() if value == default)
    if setting.unit is not None and isinstance(default, int | float):
        return setting.unit.given(default)
    return default


def _reading(setting: Setting) -> Reading:
    if setting.reading is None or isinstance(setting.reading, Reading):
        return setting.reading or Reading()
    # most commands have no setting of a daemon, and do without what judges these
    from paddler_trio.cli.daemons.readings import READINGS

    return READINGS[setting.reading]


def _annotated(hint: Hint, option: OptionInfo) -> Hint:
    return Annotated[hint, option]


def _choice(words: Iterable[str]) -> Hint:
    return StrEnum("Words", {word: word for word in words})


def _origin(hint: Hint) -> object:
    return get_origin(hint)


def _without_none(hint: Hint) -> Hint:
    if _origin(hint) not in (Union, types.UnionType):
        return hint
    kept = [each for each in get_args(hint) if each is not type(None)]
    return kept[0] if len(kept) == 1 else hint


def _read(form: type, values: Mapping[str, object], **others: object) -> Any:
    fields: dict[str, object] = others
    for part in _parts(form):
        if isinstance(part, _Group):
            fields[part.field] = _read_group(part, values)
        else:
            given = values[part.parameter]
            if given is not None or part.setting is None:
                fields[part.field] = part.value(given)
    defaults = {each.name: each.default for each in attrs.fields(form)}
    for name, value in fields.items():  # as the class has sequences, which typer reads as lists
        if isinstance(value, list) and isinstance(defaults[name], tuple):
            fields[name] = tuple(value)
    return form(**fields)


def _read_group(group: _Group, values: Mapping[str, object]) -> object:
    if not group.is_optional:
        return _read(group.form, values)
    required = {e.name for e in attrs.fields(group.form) if e.default is attrs.NOTHING}
    given = [flag for flag in _flags(group.form) if values[flag.parameter] is not None]
    if any(flag.field in required for flag in given):
        return _read(group.form, values)
    if given:
        (asking,) = (flag for flag in _flags(group.form) if flag.field in required)
        raise typer.BadParameter(f"makes sense with {asking.typed} only", param_hint=given[0].typed)
    return None
