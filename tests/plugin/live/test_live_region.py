"""Lines below pytest's: whatever is written, they leave no trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.terminal import Terminal

from pytest_aorta.plugin.live.region import LiveRegion, RegionFile


class Written:
    """A terminal, what pytest would write to it, and the lines below."""

    def __init__(self, columns: int, lines: int) -> None:
        self.terminal = Terminal(columns, lines)
        self._file = self.terminal.file()
        self._line = ""
        #: How often the lines had to go, and should come again.
        self.erased = 0
        self.region = LiveRegion(self._file, lambda: len(self._line), self.count)
        self.file = RegionFile(self._file, self.region)

    def count(self) -> None:
        self.erased += 1

    def write(self, text: str) -> None:
        """As pytest's terminal writer does, which knows the width of its line."""
        self._line = text.rsplit("\n", 1)[1] if "\n" in text else self._line + text
        self.file.write(text)

    def close(self) -> None:
        self.region.close()
        self._file.close()
        self.terminal.close()


@pytest.fixture
def written() -> Iterator[Written]:
    written = Written(20, 6)
    yield written
    written.close()


def test_lines_come_below_what_is_written_and_change(written: Written) -> None:
    written.write("one\n..")
    written.file.flush()
    written.region.show(["first", "second"])
    assert written.terminal.lines() == ["one", "..", "first", "second"]
    written.region.show(["first again"])
    written.write(".")
    written.file.flush()
    assert written.terminal.lines() == ["one", "...", "first again"]
    assert (written.terminal.screen.cursor.y, written.terminal.screen.cursor.x) == (1, 3)


def test_what_pytest_writes_comes_above_them(written: Written) -> None:
    written.region.show(["first", "second"])
    written.write("one\ntwo\n")
    written.file.flush()
    assert written.terminal.lines() == ["one", "two"]
    assert written.erased == 1
    written.region.show(["first", "second"])
    assert written.terminal.lines() == ["one", "two", "", "first", "second"]


def test_at_the_bottom_the_screen_scrolls(written: Written) -> None:
    for number in range(10):
        written.write(f"\nline {number}")
        written.file.flush()
        written.region.show(["first", f"second {number}"])
    assert written.terminal.lines() == ["line 6", "line 7", "line 8", "line 9", "first", "second 9"]
    assert written.terminal.transcript()[:11] == ["", *(f"line {number}" for number in range(10))]


def test_what_others_write_stays(written: Written) -> None:
    """Not through pytest's terminal writer: ``print`` in a hook, a message of the shell."""
    written.write("..")
    written.file.flush()
    written.region.show(["first", "second"])
    written.terminal.file().write("said by others\nand more\n")
    written.region.show(["first!", "second"])
    assert written.terminal.lines() == ["..said by others", "and more", "", "first!", "second"]


def test_lines_that_are_the_same_are_not_drawn_again(written: Written) -> None:
    written.region.show(["first"])
    written.terminal.read()
    before = len(written.terminal.written)
    for _ in range(10):
        written.region.show(["first"])
        written.write(".")
    written.file.flush()
    written.terminal.read()
    assert len(written.terminal.written) - before == 10


def test_a_full_line_of_pytests_is_not_touched(written: Written) -> None:
    """The cursor is beyond its last column then, and could not come back there."""
    written.write("x" * 20)
    written.file.flush()
    written.region.show(["first"])
    assert written.terminal.lines() == ["x" * 20]
    written.write(".")
    written.file.flush()
    written.region.show(["first"])
    assert written.terminal.lines() == ["x" * 20, ".", "first"]


def test_characters_that_are_two_columns_wide_are_cut(written: Written) -> None:
    written.write("..")
    written.file.flush()
    written.region.show(["\N{FULLWIDTH LATIN CAPITAL LETTER A}" * 19, "second"])
    assert written.terminal.lines()[0] == ".."
    assert written.terminal.lines()[2] == "second"


def test_a_terminal_that_has_become_smaller_has_its_lines_back(written: Written) -> None:
    written.write("one\n..")
    written.file.flush()
    written.region.show(["first", "second", "third"])
    written.terminal.read()
    written.terminal.resize(12, 6)
    assert written.region.size() == (12, 6)
    written.region.show(["first", "second"])
    assert written.terminal.lines() == ["one", "..", "first", "second"]


def test_what_is_closed_is_gone_and_draws_nothing_more(written: Written) -> None:
    written.write("..")
    written.file.flush()
    written.region.show(["first"])
    written.region.close()
    written.region.show(["again"])
    written.write("\nafter")
    written.file.flush()
    written.region.close()
    assert written.terminal.lines() == ["..", "after"]
    assert written.region.size() == (0, 0)


#: What pytest writes; and lines that are shown below it.
WRITTEN = st.sampled_from([".", "F", "\n", "name ", "PASSED", "  [ 50%]\n", "=" * 12 + "\n", "a\nb\nc\n", "x" * 30])
SHOWN = st.lists(st.text("abc", min_size=1, max_size=11), max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(WRITTEN, SHOWN)))
def test_in_the_end_all_is_as_without_them(actions: list[str | list[str]]) -> None:
    with_lines, without = Written(12, 7), Terminal(12, 7)
    plain = without.file()
    for action in actions:
        if isinstance(action, str):
            with_lines.write(action)
            with_lines.file.flush()
            plain.write(action)
            plain.flush()
        else:
            with_lines.region.show(action)
        with_lines.terminal.read()
        without.read()
    with_lines.region.close()
    assert with_lines.terminal.transcript() == without.transcript()
    plain.close()
    without.close()
    with_lines.close()
