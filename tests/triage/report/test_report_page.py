"""The report: what is on the page, and texts of others on it, harmless and bounded."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.results import NAN, write_triage
from support.results import write_whole_cell as write_cell

from pytest_aorta.cli.results import compare
from pytest_aorta.triage.report import bounded, inside, log_tail, one_line, visible_text, write_report


def written(results: Path) -> str:
    """The HTML of a report."""
    output = results.parent / "report.html"
    write_report(results, output)
    return output.read_text()


def words(page: str) -> str:
    """What can be read of a page, with single spaces."""
    body = re.sub(r"<(style|script|title)>.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def body_of(page: str, anchor: str) -> str:
    """The row of a trial with all that belongs to it."""
    found = re.search(rf'<tbody id="{re.escape(anchor)}".*?</tbody>', page, re.DOTALL)
    assert found is not None
    return words(found[0])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(write_triage(tmp_path_factory.mktemp("page") / "results"))


def test_the_first_sentence_says_what_helps(page: str) -> None:
    sentence = words(page).partition("trials 64")[0]
    assert "omp_1 fixes it: 0 of 20 failed" in sentence
    assert "So does slow" in sentence


def test_every_cell_has_its_verdict_counts_and_interval(page: str) -> None:
    cells = {
        found[1]: words(found[0]) for found in re.finditer(r'<tbody data-cell="([^"]*)">.*?</tbody>', page, re.DOTALL)
    }
    assert list(cells) == ["local-none", "local-omp_1", "local-slow", "local-broken"]
    assert "16 of 20 4 ok, 15 failed, 1 timeout 80% (58-92%) baseline" in cells["local-none"]
    assert "0% (<14%) fixes" in cells["local-omp_1"]
    assert "-80 (-92 to -53) <0.0001" in cells["local-omp_1"]
    assert "slower: +" in cells["local-slow"]
    assert "- 4 did not run no trial counts did not run" in cells["local-broken"]


def test_differences_lie_on_one_scale(page: str) -> None:
    section = page.partition('<h2 id="verdicts"')[2].partition("</section>")[0]
    assert "its scale is from -100 to +5" in words(section)
    forests = re.findall(r'<svg class="forest ([\w-]+)" viewBox="-1 0 1.05 12".*?M(\S+) 6H(\S+)".*?M(\S+) 6h0', section)
    assert [kind for kind, *_ in forests] == ["fixes", "fixes"]
    for _, low, high, difference in forests:
        assert -1 <= float(low) <= float(difference) <= float(high) <= 0.05


def test_failures_add_up_over_the_run(tmp_path: Path) -> None:
    write_cell(tmp_path / "results", "none", "F.F-")
    write_cell(tmp_path / "results", "omp_1", "...F", place=1)
    section = written(tmp_path / "results").partition('<h2 id="evidence"')[2].partition("</section>")[0]
    assert "local-omp_1 1 of 4 failed , baseline 2 of 3" in words(section)
    lines = dict(re.findall(r'class="(base|own|lost)" d="(\w[^"]*|)"', section))
    # Eight trials in turns: the baseline's are the first, third, fifth and seventh, the last of which was lost.
    assert lines == {"base": "M0 44H12.5V23.0H62.5V2.0H62.5", "own": "M0 44H100.0V23.0H100.0", "lost": ""}
    write_cell(tmp_path / "one", "none", "F.F-")
    page = written(tmp_path / "one")
    section = page.partition('<h2 id="evidence"')[2].partition("</section>")[0]
    assert 'class="lost" d="M100.0 45.5V50"' in section
    assert ", baseline" not in words(section)
    assert "local-none: 2 of 3 trials failed, 67% (21-94%); there is nothing to compare with." in words(page)
    write_cell(tmp_path / "fine" / "results", "none", "....")
    assert 'id="evidence"' not in written(tmp_path / "fine" / "results")


def test_cells_and_signatures_are_a_table(page: str, tmp_path: Path) -> None:
    table = page.partition('<table id="heat">')[2].partition("</table>")[0]
    rows = [words(row).split() for row in re.findall(r"<tr>(.*?)</tr>", table)]
    assert rows[1:] == [
        ["local-none", "13", "·", "2", "1"],
        ["local-omp_1", "·", "·", "·", "·"],
        ["local-slow", "·", "·", "·", "·"],
        ["local-broken", "·", "4", "·", "·"],
    ]
    assert "--share: 45%" in table  # all trials of a cell
    write_cell(tmp_path / "results", "none", "F.F.")
    assert 'id="heat"' not in written(tmp_path / "results")
    for place, name in enumerate(("one", "two")):
        for file, letter in zip(
            write_cell(tmp_path / "many", name, "F" * 12, place=place), "abcdefghijkl", strict=True
        ):
            content = json.loads(file.read_text())
            failure = {"phase": "run", "kind": "exception", "type": "ValueError", "message": f"bug {letter}"}
            file.write_text(json.dumps({**content, "failure": failure}))
    table = written(tmp_path / "many").partition('<table id="heat">')[2].partition("</table>")[0]
    assert words(table).endswith("others local-one 1 1 1 1 1 1 1 1 4 local-two 1 1 1 1 1 1 1 1 4")


def test_ways_to_fail_have_verdicts_of_their_own(page: str) -> None:
    cell = re.search(r'<tbody data-cell="local-omp_1">.*?</tbody>', page, re.DOTALL)
    assert cell is not None
    assert "loss is nan" in words(cell[0])
    assert "baseline 2" in words(cell[0])
    assert "undecided" in words(cell[0])


def test_a_failed_trial_has_all_that_is_known_of_it(page: str) -> None:
    text = body_of(page, "train/local-none/trial_0")
    for part in (
        "FloatingPointError: loss is nan at step 11",
        "workload failed: exception in run",
        'File "/home/me/train.py", line 88, in step',
        "end of stderr warning: clock is not synchronised",
        "end of stdout step 10 loss 3.1 step 11 loss nan",
        "pytest --aorta-replay",
        "results/train/local-none/trial_0.json",
        "trial_0/stdout.log",
    ):
        assert part in text


def test_links_lead_to_files_beside_the_report(page: str, tmp_path: Path) -> None:
    results = write_triage(tmp_path / "my results")
    (tmp_path / "pages").mkdir()
    write_report(results, tmp_path / "pages" / "r.html")
    links = re.findall(r'href="(\./[^"]*)"', (tmp_path / "pages" / "r.html").read_text())
    assert "./../my%20results/train/local-none/trial_0/stdout.log" in links


def test_where_failures_gather_is_a_table_with_a_bar_for_each_place(tmp_path: Path) -> None:
    for place, mitigation in enumerate(("none", "omp_1")):
        for index, file in enumerate(write_cell(tmp_path / "results", mitigation, "F." * 10, place=place)):
            content = {**json.loads(file.read_text()), "host": f"node{index % 2 + 1}"}
            file.write_text(json.dumps(content))
    page = written(tmp_path / "results")
    section = page.partition('<h2 id="where"')[2].partition("</section>")[0]
    text = words(section)
    assert "Host : 20 of 20 failures on node1: suspect the host, not the variables (node1 ran 20 of 40 trials;" in text
    assert "node1 20 of 20 10 node2 0 of 20 10" in text
    assert "Order : no sign that it matters, p 1 first third" in text
    assert section.count("<svg") == section.count('<th scope="row">') > 4
    assert "20 of 20 failures on node1: suspect the host" in words(page.partition("<main>")[0])


def test_bars_show_what_the_sentence_above_them_tests(tmp_path: Path) -> None:
    """Of a cell that fails and one that hardly does, by turns, few trials fail after a failure: as their cells do."""
    write_cell(tmp_path / "results", "none", "F" * 17 + "..", place=0)
    write_cell(tmp_path / "results", "omp_1", "F" + "." * 18, place=1)
    section = written(tmp_path / "results").partition('<h2 id="where"')[2].partition("</section>")[0]
    bars = "after a failure 2 of 18 1.89 after none 15 of 19 15.1"
    assert f"Trial before : no sign that it matters, p 1 {bars}" in words(section)
    assert section.count('class="expected"') == section.count('<th scope="row">')


def test_the_page_has_targets_for_its_links_headings_without_gaps_and_no_other_place(page: str) -> None:
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    targets = {html.unescape(link) for link in re.findall(r'href="#([^"]*)"', page)}
    assert {target for target in targets if "=" not in target} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(second <= first + 1 for first, second in itertools.pairwise(levels))
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:|//)", page)
    assert "http:" not in page
    assert "https:" not in page


def test_what_differs_between_environments_is_in_words(tmp_path: Path) -> None:
    write_cell(tmp_path / "results", "none", "F.F.", env={"process": {"pid": 1}, "env_vars": {}})
    one = {"process": {"pid": 1}, "env_vars": {"OMP_NUM_THREADS": "1"}}
    write_cell(tmp_path / "results", "omp_1", "....", place=1, env=one)
    assert "local-omp_1 local-none OMP_NUM_THREADS unset -> 1" in words(written(tmp_path / "results"))


def test_records_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    first, second, _ = write_cell(tmp_path / "results", "none", "FF.")
    first.write_text("{")
    content = json.loads(second.read_text())
    second.write_text(json.dumps({**content, "artifacts": {"stdout": 5}}))
    text = words(written(tmp_path / "results"))
    assert "2 trial files could not be read; the first is train/local-none/trial_0.json: not valid JSON" in text


def test_a_rate_of_trials_that_ran_again_because_they_had_failed_is_said_to_be_too_low(tmp_path: Path) -> None:
    files = write_cell(tmp_path / "results", "none", "FF....")
    history = tmp_path / "results/.history/20260102T000000.000000Z/train/local-none"
    history.mkdir(parents=True)
    warning = "2 failed trials of train local-none ran again, others did not: its rate is too low if "
    for number, file in enumerate(files):
        # Once all have run again, there is one run.
        assert words(written(tmp_path / "results")).count(warning) == (2 if 2 <= number < 6 else 0)
        text = file.read_text()
        if number < 2:
            (history / file.name).write_text(text)
        file.write_text(json.dumps({**json.loads(text), "started_at": "2026-01-02T00:00:01.000+00:00"}))
        if number == 3:
            write_cell(tmp_path / "other", "none", "F.....")
            sides = [str(tmp_path / "other"), str(tmp_path / "results")]
            compared = CliRunner().invoke(compare, sides, catch_exceptions=False).output
            assert [name for name in "AB" if f"{name}: {warning}" in compared] == ["B"]
    assert warning not in words(written(tmp_path / "results"))


@pytest.mark.parametrize(
    ("at", "leads"), [("2000-01-01T00:00:00.000+00:00", False), ("", True), ("2100-01-01T00:00:00.000+00:00", True)]
)
def test_what_a_search_has_said_leads_until_a_later_run(tmp_path: Path, at: str, leads: bool) -> None:
    write_cell(tmp_path / "results", "none", "FF....")
    report = {
        "is_found": True,
        "sentence": "it doubles",
        "head": ["condition", "failed"],
        "rows": [],
        "at": at,
    }
    said = {"search": "amplify", "workload": "train", "report": report}
    (tmp_path / "results" / "amplify-train.json").write_text(json.dumps(said))
    shown = words(written(tmp_path / "results"))
    assert "it doubles" in shown
    assert ("amplify train: it doubles" in shown, "2 of 6 trials failed, 33%" in shown) == (leads, not leads)


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_trials_stay_below_five_megabytes(tmp_path: Path) -> None:
    ends = "F" * 50
    for number in range(20):
        files = write_cell(tmp_path / "results", f"m{number}", ends, place=number, step_ms=20 + number)
        for file in files:
            content = json.loads(file.read_text())
            content["failure"] = {**NAN, "message": f"loss is nan: {file} " * 40, "traceback": f"{file} <\n" * 400}
            names = ("stacks", "stderr", "stdout")
            content["artifacts"] = {name: f"{file.stem}/{name}.log" for name in names}
            for name in names:
                (file.with_suffix("") / f"{name}.log").write_text(f'{name} "{file}" <&>\n' * 2000)
            file.write_text(json.dumps(content))
    page = written(tmp_path / "results")
    assert len(page.encode()) < 5_000_000
    # Each cell has trials with all of their texts, and what is left out is named.
    for number in range(20):
        assert "end of stdout [" in body_of(page, f"train/local-m{number}/trial_0")
        assert "left out" in body_of(page, f"train/local-m{number}/trial_49")
        assert "trial_49/stdout.log" in body_of(page, f"train/local-m{number}/trial_49")


@given(st.text(alphabet=st.characters(), max_size=900))
def test_a_shown_text_is_printable_and_has_its_lines(text: str) -> None:
    shown, line = visible_text(text), one_line(text, 100)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert shown.encode() or not shown
    assert shown.count("\n") == text.count("\n") or "\x1b" in text
    assert "\n" not in line
    assert len(line) <= 100


def test_colours_of_a_terminal_are_taken_out_and_a_progress_bar_is_its_last_state() -> None:
    assert visible_text("\x1b[31;1mred\x1b[0m \x1b]0;title\x07x") == "red x"
    assert visible_text("10%\r50%\r100%\r\nnext") == "100%\nnext"


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
    os.mkfifo(tmp_path / "pipe.log")  # whose writer would be waited for
    for name in ("none.log", "x" * 9999, "pipe.log"):
        assert log_tail(tmp_path / name) == ""


def test_nothing_outside_of_the_results_is_read(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "gemm").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (results / "link").symlink_to(tmp_path / "secret")
    for path in ("../secret", "gemm/../../secret", str(tmp_path / "secret"), "link", "a\0b"):
        assert inside(results, path) is None
    assert inside(results, "gemm/trial_0.json") == results / "gemm" / "trial_0.json"
