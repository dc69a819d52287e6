"""What is chosen of a deployment's adapters, and what is refused of it and of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import LocalToAgent
from paddler_trio.wire.trio.adapters import (
    MAX_CHOSEN,
    Adapter,
    AdapterChoice,
    UnknownAdapterError,
    named,
    places_of,
)
from paddler_trio.wire.trio.desired_state_extras import Extras

FILE = LocalToAgent("/a.gguf")
THREE = tuple(Adapter(name=name, source=FILE, scale=0.5) for name in ("a", "b", "c"))
scales = st.none() | st.sampled_from([0.0, 0.25, 1.0, -2.0])
choices = st.lists(
    st.builds(AdapterChoice, id=st.integers(0, 2), scale=scales)
    | st.builds(AdapterChoice, name=st.sampled_from("abc"), scale=scales),
    max_size=3,
)


@given(choices, st.permutations(THREE))
def test_a_choice_by_names_means_the_same_whatever_the_places_are(
    chosen: list[AdapterChoice], elsewhere: list[Adapter]
) -> None:
    try:
        places = places_of(chosen, THREE)
    except UnknownAdapterError:
        names = [THREE[each.id].name if each.name is None else each.name for each in chosen]
        assert len(set(names)) < len(names), "only what is chosen twice is refused"
        return
    assert list(places) == sorted(places)
    assert all(places.values())
    by_name = {THREE[place].name: scale for place, scale in places.items()}
    moved = places_of(named(chosen, THREE), elsewhere)
    assert {elsewhere[place].name: scale for place, scale in moved.items()} == by_name
    for each in chosen:
        name = THREE[each.id].name if each.name is None else each.name
        wanted = 0.5 if each.scale is None else each.scale
        assert by_name.get(name, 0.0) == wanted


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ([AdapterChoice(id=3)], "there is no adapter 3: of 3, 0 is 'a', 1 is 'b', 2 is 'c'"),
        ([AdapterChoice(name="z")], "there is no adapter 'z'"),
        ([AdapterChoice(id=0), AdapterChoice(name="a")], "'a' is chosen twice"),
        ([AdapterChoice(id=0)] * (MAX_CHOSEN + 1), "17 adapters are chosen, the limit is 16"),
    ],
)
def test_a_choice_of_what_there_is_not_is_refused(
    chosen: list[AdapterChoice], problem: str
) -> None:
    with pytest.raises(WireError, match=problem):
        places_of(chosen, THREE)


def test_a_deployment_without_adapters_says_so() -> None:
    with pytest.raises(UnknownAdapterError, match="this deployment has none"):
        places_of([AdapterChoice(id=0)], ())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "", "source": {"LocalToAgent": "/a"}}, "cannot name an adapter"),
        ({"name": "a b", "source": {"LocalToAgent": "/a"}}, "'a b' cannot name an adapter"),
        ({"name": "a", "source": "None"}, "the adapter 'a' has no source"),
        ({"name": "a", "source": {"LocalToAgent": "/\0"}}, "has a NUL at character 1"),
        ({"name": "a", "source": {"LocalToAgent": "/" * 4096}}, "has 4096 bytes, the limit is 40"),
        ({"name": "a", "source": {"LocalToAgent": "/a"}, "scale": 100.5}, "scale is 100.5, must"),
        ({"name": "a", "source": {"LocalToAgent": "/a"}, "scale": None}, "expected a number"),
        ({"name": "a", "source": {"LocalToAgent": "/a"}, "size": 1}, "unknown field"),
    ],
)
def test_an_adapter_is_refused_with_field_value_and_limit(
    given: dict[str, object], problem: str
) -> None:
    with pytest.raises(WireError, match=r"\$\.adapters\[0\]") as raised:
        structure({"engine": {}, "adapters": [given]}, Extras)
    assert problem in str(raised.value)


def test_two_adapters_have_two_names() -> None:
    twice = [unstructure(THREE[0])] * 2
    with pytest.raises(WireError, match="two adapters are named 'a'"):
        structure({"engine": {}, "adapters": twice}, Extras)
