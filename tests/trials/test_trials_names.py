"""Names that can stand in node ids and paths, and that stay apart."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_aorta.common.texts import identifier

_SAFE = re.compile(r"[A-Za-z0-9_+=~][A-Za-z0-9_.+=~-]*")

# Any text, and texts that are close to each other and to what the function itself makes.
_close = st.text(alphabet="ab_.-~/+=0 é[]:\n", max_size=12)
names = st.text() | _close | _close.map(identifier) | st.text(alphabet="x/", min_size=118, max_size=135)


@given(names)
@example("")
@example(".")
@example("..")
@example("-k")
@example("a/b")
@example("a::b[c]")
@example("nul\0")
@example("line\n")
@example("\udcff")
@example("x" * 10_000)
def test_an_identifier_is_short_and_has_no_character_with_a_meaning(name: str) -> None:
    made = identifier(name)

    assert _SAFE.fullmatch(made)
    assert made not in (".", "..")
    assert not any(part in made for part in ("/", "::", "[", "]"))
    assert len(made) <= 160


@given(names, names)
@example("a/b", "a_b")
@example("", "~e3b0c442")
@example("x" * 121, "x" * 122)
@example("A", "a")
def test_different_names_have_different_identifiers(left: str, right: str) -> None:
    assert (identifier(left) == identifier(right)) == (left == right)


@pytest.mark.parametrize("name", ["fsdp", "rocm7-venv", "tf32_off", "a.b", "a+b", "x=1", "A", "0", "_", "x" * 120])
def test_a_name_that_is_safe_is_not_changed(name: str) -> None:
    assert identifier(name) == name
