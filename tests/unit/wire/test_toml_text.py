"""TOML is read as the standard library reads it, and long keys are refused before it begins."""

from __future__ import annotations

import time
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.wire.toml_text import MAX_KEY_PARTS, loads

FITS = ".".join(["a"] * MAX_KEY_PARTS)


@pytest.mark.parametrize(
    "text",
    [
        f"{FITS} = 1",
        f"[{FITS}]\nb = 1.5",
        f"[[{FITS}]]\n{FITS} = 2",
        f"b = {{ {FITS} = 1, c.d = 2 }}",
        "a = '" + ".b" * 99 + "'",
        'a = "' + "b." * 99 + '"',
        'a = """\n' + "b." * 99 + '\n"" \\""" """',
        "a = '''\n" + "b." * 99 + "\n'' '''",
        "# " + "b." * 99 + "\nc = 1",
        "a = [1.5, 2.5]\nb = 1979-05-27T07:32:00.999",
        "\n".join(f"key{number}.part = 1.5" for number in range(99)),
    ],
)
def test_what_is_no_long_key_is_read(text: str) -> None:
    assert loads(text) == tomllib.loads(text)


@pytest.mark.parametrize("part", ["a", '"a"', "'a'", '"\\""', "_-", "1"])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[[{}]]", "x = {{ y = 1, {} = 2 }}"])
@pytest.mark.parametrize("dot", [".", " . ", "\t."])
def test_a_key_of_too_many_parts_is_refused(part: str, form: str, dot: str) -> None:
    tomllib.loads(form.format(dot.join([part] * MAX_KEY_PARTS)))
    loads("b = 1\n" + form.format(dot.join([part] * MAX_KEY_PARTS)))
    long = "b = 1\n" + form.format(dot.join([part] * (MAX_KEY_PARTS + 1)))
    with pytest.raises(ValueError, match="line 2: a key has more parts than the limit, 32"):
        loads(long)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 500_000 + "a = 1",
        '"\\' + '"\\' * 500_000,
        '"""' + '\\"' * 500_000,
        "'" * 1_000_001,
        'a = "' + "\\" * 1_000_000,
    ],
)
def test_a_megabyte_of_it_takes_no_time(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(ValueError, match=r"line 1|Invalid|Un|Expected"):
        loads(text)
    assert time.process_time() - began_s < 10


@given(st.text(st.sampled_from("a1._-=\"'\\\n#[]{}, \t"), max_size=40))
def test_nothing_else_is_refused(text: str) -> None:
    try:
        expected: object = tomllib.loads(text)
    except ValueError:
        with pytest.raises(tomllib.TOMLDecodeError):
            loads(text)
    else:
        assert loads(text) == expected
