"""``pytest-aorta report`` writes one file, or says in one line why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.results import write_cell

from pytest_aorta.cli.main import main


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_cell(Path("results"), "FFF.....")
    write_cell(Path("results"), "." * 8, mitigations="omp_1", place=1)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def test_the_results_of_the_default_folder_become_one_file(results: Path) -> None:
    result = run("--baseline", "omp_1")
    assert (result.exit_code, result.output) == (0, "report: report.html\n")
    text = Path("report.html").read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "local-omp_1" in text


def test_a_bug_report_is_printed_as_markdown(results: Path) -> None:
    text = run("--markdown").output
    assert text.startswith("**")
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("|")]
    assert cells[:3] == ["| Cell", "| ---", "| local-none"]
    assert len(cells) <= 5
    assert "- torch: " in text
    assert not Path("report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "-o", "r.html"), "nowhere: there is no such file or folder"),
        (("results", "-o", "no/where/r.html"), "no/where does not exist"),
        (("results", "-o", "results"), "results is a folder"),
        (("results", "-o", "r.html", "--baseline", "none+omp_1"), "--baseline: there is no cell 'none+omp_1'"),
        (("results", "--markdown", "--baseline", "none+omp_1"), "--baseline: there is no cell 'none+omp_1'"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(
    results: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert isinstance(result.exception, SystemExit)
    assert not Path("r.html").exists()
