"""The ``format`` keyword of JSON Schema as patterns.

Each pattern describes only texts that the format allows; where a format has corners that no model
needs (the leap second, years before 1000, comments in mail addresses) they are left out.
"""

from __future__ import annotations

_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_MAIL_WORD = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LENGTH = (
    "P(?:[0-9]{1,6}W"
    "|(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D)"
    "(?:T{T})?|T{T})"
).replace(
    "{T}",
    "(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)",
)

TEXT_FORMATS = {
    "date": _DATE,
    "time": f"{_CLOCK}{_ZONE}",
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "duration": _LENGTH,
    "email": rf"{_MAIL_WORD}(?:\.{_MAIL_WORD}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": f"(?:{_GROUP}:){{7}}{_GROUP}|::(?:{_GROUP}:){{0,5}}{_GROUP}|(?:{_GROUP}:){{1,7}}:",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]{0,30}://"
    r"(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}

INTEGER_FORMATS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (None, None),  # what we write has fewer digits
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, None),
}
NUMBER_FORMATS = frozenset({"float", "double", "decimal"})
