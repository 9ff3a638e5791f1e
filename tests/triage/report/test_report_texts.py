"""Texts of others on the page: harmless, bounded, and there once."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.triage.report import bounded, inside, log_tail, one_line, plain


@given(st.text(alphabet=st.characters(), max_size=60))
def test_a_shown_text_is_printable_and_has_its_lines(text: str) -> None:
    shown = plain(text)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert shown.encode() or not shown
    assert shown.count("\n") == text.count("\n") or "\x1b" in text


@given(st.text(max_size=900))
def test_a_line_is_one_and_bounded(text: str) -> None:
    line = one_line(text, 100)
    assert "\n" not in line
    assert len(line) <= 100


def test_colours_of_a_terminal_are_taken_out_and_a_progress_bar_is_its_last_state() -> None:
    assert plain("\x1b[31;1mred\x1b[0m \x1b]0;title\x07x") == "red x"
    assert plain("10%\r50%\r100%\r\nnext") == "100%\nnext"


def test_a_long_text_keeps_its_end_and_says_so() -> None:
    text = "\n".join(f"line {number}" for number in range(1000))
    shown = bounded(text)
    assert shown.endswith("line 998\nline 999")
    assert len(shown.splitlines()) == 41
    assert "characters before" in shown.splitlines()[0]
    assert bounded("short") == "short"


def test_of_a_log_the_last_lines_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert log_tail(log).splitlines()[-1] == "line 4999"
    assert len(log_tail(log)) < 9000
    log.write_bytes(b"x" * 1_000_000)
    assert len(log_tail(log)) < 9000
    assert log_tail(tmp_path / "none.log") == ""
    assert log_tail(tmp_path / ("x" * 9999)) == ""


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdout.log")
    assert log_tail(tmp_path / "stdout.log") == ""


def test_nothing_outside_of_the_results_is_read(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "gemm").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (results / "link").symlink_to(tmp_path / "secret")
    for path in ("../secret", "gemm/../../secret", str(tmp_path / "secret"), "link", "a\0b"):
        assert inside(results, path) is None
    assert inside(results, "gemm/trial_0.json") == results / "gemm" / "trial_0.json"
