"""Places inside a JSON document, and what addresses refer to them."""

from __future__ import annotations

from urllib.parse import unquote, urljoin


def places_of(node: object, pointer: str) -> dict[int, str]:
    """Pointers to all objects inside ``node``, itself included, by their ids."""
    places: dict[int, str] = {}
    waiting = [(node, pointer)]
    while waiting:
        each, where = waiting.pop()
        if isinstance(each, dict):
            places[id(each)] = where
            waiting += [(inner, f"{where}/{escaped(key)}") for key, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(inner, f"{where}/{index}") for index, inner in enumerate(each)]
    return places


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def at(node: object, pointer: str) -> object:
    """Return what a JSON pointer leads to; None for nothing."""
    if not pointer.startswith("/"):
        return None
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # an address that is none
        return reference


def last_name(reference: str) -> str:
    name = unquote(reference.rpartition("/")[2].rpartition("#")[2])
    return name.replace("~1", "/").replace("~0", "~")
