"""What reports of other plugins show of a trial; real ones are in ``tests/downstream/test_plugins_of_others.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.plugin.failures import html_header, html_row, links_of

FAULTY = Path(__file__).with_name("faulty_workloads.py")


def report(**properties: str) -> pytest.TestReport:
    properties = {f"aorta_{name}": text for name, text in properties.items()}
    return pytest.TestReport(
        "a.py::x", ("a.py", 0, "x"), {}, "passed", None, "teardown", user_properties=properties.items()
    )


def test_links_lead_to_the_trial_file_and_the_artifacts_beside_it() -> None:
    found = links_of(report(trial_file="/r/a b/trial_0.json", artifacts="stderr=trial_0/stderr.log, tmp=trial_0/tmp"))
    assert {link["name"]: link["content"] for link in found} == {
        "trial file": "file:///r/a%20b/trial_0.json",
        "stderr": "file:///r/a%20b/trial_0/stderr.log",
        "tmp": "file:///r/a%20b/trial_0/tmp",
    }
    assert {link["format_type"] for link in found} == {"url"}
    assert links_of(report()) == []


def test_the_table_of_pytest_html_has_columns_with_harmless_texts() -> None:
    heads = ["result", "test", "duration"]
    html_header(heads)
    assert [head.rpartition("</th>")[0].rpartition(">")[2] for head in heads[2:4]] == ["Cell", "Status"]
    rows: list[list[str]] = [["result", "test", "duration"] for _ in range(2)]
    html_row(report(trial_id="x", environment="<b>", mitigations="none"), "ok", rows[0])
    html_row(report(), "ok", rows[1])
    assert rows[0][2:4] == ['<td class="col-cell">&lt;b&gt;-none</td>', '<td class="col-status">ok</td>']
    assert rows[1][2:4] == ['<td class="col-cell"></td>', '<td class="col-status"></td>']
    assert rows[0][4:] == rows[1][4:] == heads[4:]


def test_a_passed_trial_has_the_ends_of_its_logs_as_captured_output(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.register(passes="faulty_workloads:Passes")
    result = stage.run("--aorta-workload", "passes", "-rP")
    result.stdout.fnmatch_lines(["*Captured stdout teardown*", "cleaned up"])
    stage.run("--aorta-workload", "passes", "-rP", "--show-capture=no").stdout.no_fnmatch_line("cleaned up")


def test_the_table_is_printed_by_a_reporter_that_is_none_of_pytest_s(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.register(fails="faulty_workloads:RaisesInRun")
    stage.write(
        conftest="""
        import pytest

        class Short:
            '''Knows as little of a terminal as those of pytest-tldr and others do.'''

            verbosity = 0

            def __init__(self, config):
                self.config = config
                self.stats = {}

            def write(self, text, **markup):
                print(text, end="")

            def write_line(self, text, **markup):
                print(text)

            def write_sep(self, sep, title=None, **markup):
                print(sep, title, sep)

            @pytest.hookimpl(trylast=True)
            def pytest_unconfigure(self, config):
                config.hook.pytest_terminal_summary(terminalreporter=self, exitstatus=0, config=config)

        @pytest.hookimpl(trylast=True)
        def pytest_configure(config):
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(Short(config), "terminalreporter")
        """
    )
    result = stage.run("--aorta-workload", "fails", "--aorta-trials", "5")
    result.stdout.fnmatch_lines(["= trials =", "*5 of 5*", "results: results"])
    assert "Error" not in result.stderr.str()
