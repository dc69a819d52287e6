"""Numbers between bounds as GBNF, digit by digit.

Numbers have at most 15 significant digits, 16 where nothing bounds them: a reader that makes
doubles of them tells all of those with 15 apart, so a text within its bounds is a number within
its bounds.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

import attrs

from paddler_trio.language.grammars.gbnf_writer import GrammarError, GrammarWriter, literal

MAX_DIGITS = 18
"""Of a bound, on either side of its point."""
_FREE_DIGITS = 16
_EXACT_DIGITS = 15

ANY_INTEGER = '"-"? ("0" | [1-9] [0-9]{0,15})'
ANY_NUMBER = f'{ANY_INTEGER} ("." [0-9]{{1,16}})? ([eE] [-+]? [0-9]{{1,2}})?'


@attrs.frozen
class Bounds:
    """The least and the most a number may be; None is no bound."""

    least: Decimal | None = None
    most: Decimal | None = None
    excludes_least: bool = False
    excludes_most: bool = False

    def __bool__(self) -> bool:
        """Whether there is a bound at all."""
        return self.least is not None or self.most is not None


class NoNumberError(GrammarError):
    """Nothing lies between two bounds."""


def integer(bounds: Bounds, writer: GrammarWriter) -> str:
    """GBNF for the integers within ``bounds``; GrammarError if there are none."""
    bounds = _reached(bounds)
    if not bounds:
        return writer.rule(ANY_INTEGER, "integer")
    least = most = None
    if bounds.least is not None:
        least = int(bounds.least.to_integral_value(ROUND_CEILING))
        least += bounds.excludes_least and least == bounds.least
    if bounds.most is not None:
        most = int(bounds.most.to_integral_value(ROUND_FLOOR))
        most -= bounds.excludes_most and most == bounds.most
    widest = 10**_FREE_DIGITS - 1
    if least is None:
        assert most is not None, "one bound is given"
        least = min(-widest, most - widest)
    if most is None:
        most = max(widest, least + widest)
    ways = _integers_between(least, most)
    if not ways:
        raise NoNumberError("no integer lies between the bounds")
    return writer.rule(" | ".join(ways), "integer")


def number(bounds: Bounds, writer: GrammarWriter) -> str:
    """GBNF for the numbers within ``bounds``, without exponent; GrammarError if there are none."""
    bounds = _reached(bounds)
    if not bounds:
        return writer.rule(ANY_NUMBER, "number")
    ways = []
    least, most = bounds.least, bounds.most
    if most is None or most > 0 or (most == 0 and not bounds.excludes_most):
        low, excludes = (Decimal(0), False)
        if least is not None and least >= 0:
            low, excludes = least, bounds.excludes_least
        ways += _numbers_between(low, excludes, most, bounds.excludes_most)
    if least is None or least < 0:
        low, excludes = (Decimal(0), True)
        if most is not None and most <= 0:
            low, excludes = -most, bounds.excludes_most or most == 0
        high = None if least is None else -least
        ways += [
            f'"-" {way}' for way in _numbers_between(low, excludes, high, bounds.excludes_least)
        ]
    if not ways:
        raise NoNumberError("no number lies between the bounds")
    return writer.rule(" | ".join(ways), "number")


def _reached(bounds: Bounds) -> Bounds:
    """The bounds without those beyond what is ever written; GrammarError for one that is too long.

    What has more digits behind its point is rounded towards the other bound.
    """
    least, most = bounds.least, bounds.most
    if least is not None and least < 0 and _is_beyond(least):
        bounds = attrs.evolve(bounds, least=None, excludes_least=False)
    elif least is not None and _digits_behind(least) > MAX_DIGITS:
        bounds = attrs.evolve(bounds, least=_rounded(least, ROUND_CEILING), excludes_least=False)
    if most is not None and most > 0 and _is_beyond(most):
        bounds = attrs.evolve(bounds, most=None, excludes_most=False)
    elif most is not None and _digits_behind(most) > MAX_DIGITS:
        bounds = attrs.evolve(bounds, most=_rounded(most, ROUND_FLOOR), excludes_most=False)
    for bound in (bounds.least, bounds.most):
        if bound is not None and _is_beyond(bound):
            raise GrammarError(f"a bound has more than {MAX_DIGITS} digits before its point")
    return bounds


def _is_beyond(bound: Decimal) -> bool:
    return bound.adjusted() >= MAX_DIGITS


def _digits_behind(bound: Decimal) -> int:
    exponent = bound.as_tuple().exponent
    assert isinstance(exponent, int), "a bound is a number"
    return -exponent


def _rounded(bound: Decimal, way: str) -> Decimal:
    with localcontext(prec=4 * MAX_DIGITS):
        return bound.quantize(Decimal(1).scaleb(-_EXACT_DIGITS), rounding=way)


def _integers_between(least: int, most: int) -> list[str]:
    """GBNF alternatives for the integers from ``least`` to ``most``."""
    ways = []
    if least < 0:
        low, high = max(1, -most), -least
        ways += [f'"-" {way}' for _, way in _naturals_between(low, high)]
    if most >= 0:
        ways += [way for _, way in _naturals_between(max(least, 0), most)]
    return ways


def _naturals_between(low: int, high: int) -> list[tuple[int, str]]:
    """How many digits, and GBNF for the numbers with so many."""
    ways = []
    while low <= high:
        width = len(str(low))
        top = min(high, 10**width - 1)
        ways.append((width, _same_width(str(low), str(top))))
        low = top + 1
    return ways


def _same_width(low: str, high: str) -> str:
    """Digits from ``low`` to ``high``, which are as long as each other."""
    if low == high:
        return literal(low)
    shared = 0
    while low[shared] == high[shared]:
        shared += 1
    if shared:
        return f"{literal(low[:shared])} {_same_width(low[shared:], high[shared:])}"
    rest = len(low) - 1
    if not rest:
        return _digits(int(low), int(high))
    first, last = int(low[0]), int(high[0])
    ways = []
    if set(low[1:]) != {"0"}:
        ways.append(f"{literal(low[0])} {_same_width(low[1:], '9' * rest)}")
        first += 1
    tail = ""
    if set(high[1:]) != {"9"}:
        tail = f"{literal(high[0])} {_same_width('0' * rest, high[1:])}"
        last -= 1
    if first <= last:
        ways.append(f"{_digits(first, last)} {_some_digits(rest, rest)}")
    ways += [tail] if tail else []
    return f"({' | '.join(ways)})"


def _numbers_between(
    low: Decimal, excludes_low: bool, high: Decimal | None, excludes_high: bool
) -> list[str]:
    """GBNF alternatives for the decimals from ``low`` >= 0 to ``high``."""
    if high is not None and (high < low or (high == low and (excludes_low or excludes_high))):
        return []
    low_int, low_digits = _split(low)
    room = _room(len(str(low_int)))
    if high is None:
        high_int, high_digits = max(10**_EXACT_DIGITS, 10 * low_int + 10), ""
    else:
        high_int, high_digits = _split(high)
    if low_int == high_int:
        fraction = _fraction(low_digits, excludes_low, high_digits, excludes_high, room)
        return _behind(low_int, fraction)
    ways = _behind(low_int, _fraction(low_digits, excludes_low, None, False, room))
    for width, way in _naturals_between(low_int + 1, high_int - 1):
        free = f'("." {_some_digits(1, _room(width))})?' if _room(width) else ""
        ways.append(f"{way} {free}".rstrip())
    if high is not None:
        fraction = _fraction("", False, high_digits, excludes_high, _room(len(str(high_int))))
        ways += _behind(high_int, fraction)
    return ways


def _behind(digits: int, ways: list[str]) -> list[str]:
    """GBNF for these digits and one of ``ways`` after them."""
    return [f"{literal(str(digits))} {way}".rstrip() for way in ways]


def _room(width: int) -> int:
    """Digits behind the point of a number with ``width`` before it."""
    return max(0, _EXACT_DIGITS - width)


def _split(bound: Decimal) -> tuple[int, str]:
    """The integer part and the digits behind the point, without zeros at their end."""
    whole, _, digits = f"{bound:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _fraction(
    low: str, excludes_low: bool, high: str | None, excludes_high: bool, room: int
) -> list[str]:
    """What may follow the integer part; an empty text is nothing.

    Args:
      low: digits of the least fraction, "" for zero.
      high: digits of the greatest, "" for zero, None for no limit.
      room: digits that may be written where nothing else decides.
    """
    ways = []
    if not low and not excludes_low and not (high == "" and excludes_high):
        ways.append("")
    digits = _digits_between(low, excludes_low, high, excludes_high, room)
    if digits is not None:
        ways.append(f'"." {digits}')
    return ways


def _digits_between(
    low: str | None, excludes_low: bool, high: str | None, excludes_high: bool, room: int
) -> str | None:
    """At least one digit, such that 0.digits lies between; None if there is no such text.

    ``low`` and ``high`` None: already above the one, below the other.
    """
    if low is None and high is None:
        return _some_digits(1, room) if room > 0 else None
    if low == "" and not excludes_low:
        low = None  # every digit that follows only makes it greater or leaves it equal
        return _digits_between(None, False, high, excludes_high, room)
    if room <= 0 and not low and not high:
        return None
    if high == "" and low is None:
        # Equal to the upper bound so far: only zeros keep it there.
        return None if excludes_high else '"0"{1,2}'
    ways = []
    least = int(low[0]) if low else 0
    most = 9 if high is None else int(high[0]) if high else 0
    free_from, free_to = least, most
    if low is not None:
        free_from += 1
        if high is None or (most > least):
            ways += _behind(least, _rest(low[1:], excludes_low, None, False, room - 1))
    if high is not None:
        free_to -= 1
        if low is None or most > least:
            ways += _behind(most, _rest(None, False, high[1:], excludes_high, room - 1))
    if low is not None and high is not None and most == least:
        after = _rest(low[1:], excludes_low, high[1:], excludes_high, room - 1)
        ways += _behind(least, after)
    if free_from <= free_to:
        rest = _some_digits(0, room - 1) if room > 1 else ""
        ways.append(f"{_digits(free_from, free_to)} {rest}".rstrip())
    return f"({' | '.join(ways)})" if ways else None


def _rest(
    low: str | None, excludes_low: bool, high: str | None, excludes_high: bool, room: int
) -> list[str]:
    """As ``_digits_between``, but no digit at all is fine where that is within the bounds."""
    ways = []
    ends_above = low is None or (low == "" and not excludes_low)
    ends_below = high is None or high != "" or not excludes_high
    if ends_above and ends_below:
        ways.append("")
    digits = _digits_between(low, excludes_low, high, excludes_high, room)
    return [f"({digits})?"] if ways and digits is not None else ways or ([digits] if digits else [])


def _digits(first: int, last: int) -> str:
    return f"[{first}-{last}]" if last > first else literal(str(first))


def _some_digits(least: int, most: int) -> str:
    if most == least:
        return "[0-9]" if least == 1 else f"[0-9]{{{least}}}"
    return f"[0-9]{{{least},{most}}}"
