"""Every row of docs/guides/plugins.md: trials beside another plugin, in an environment that has them all.

Slow, and in need of a package index: `pytest tests/downstream/test_plugins_of_others.py -m downstream`.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.pip_environments import ROOT, environment_beside_this_run, run_module

WORKLOADS = """
    import os

    class Good:
        timeout_sec = 60

        def __init__(self, config):
            pass

        def setup(self):
            pass

        def run(self):
            print("all is well", os.environ.get("SEEN"))
            return {"passed": True}

    class Bad(Good):
        def run(self):
            print("step <17>")
            raise ValueError("loss is nan")

    class Broken(Good):
        def setup(self):
            raise RuntimeError("no such device")
"""

#: Exit statuses of two trials each.
STATUSES = {"Good": ["ok"] * 2, "Bad": ["workload_failed"] * 2, "Broken": ["infrastructure_failed"] * 2}


@dataclass(frozen=True)
class Ran:
    done: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def text(self) -> str:
        return self.done.stdout

    def statuses(self, name: str = "trial_[0-9]") -> dict[str, list[str]]:
        """Of the trial files with such names, by workload, in the order of the trials."""
        found: dict[str, list[str]] = {}
        for file in sorted((self.folder / "results").glob(f"*/{name}.json")):
            found.setdefault(file.parent.name, []).append(json.loads(file.read_text())["exit_status"])
        return found

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


def all_ran(ran: Ran) -> None:
    assert ran.done.returncode == 1, ran.text + ran.done.stderr
    assert ran.statuses() == STATUSES
    assert re.search(r"^Bad local-none +2 of 2 ", ran.text, re.MULTILINE), ran.text


def ran_again(ran: Ran) -> None:
    all_ran(ran)
    assert ran.statuses("trial_*.repeat_*") == {name: each for name, each in STATUSES.items() if name != "Good"}


def all_ran_without_a_table(ran: Ran) -> None:
    assert ran.done.returncode == 1, ran.text + ran.done.stderr
    assert "INTERNALERROR" not in ran.text + ran.done.stderr
    assert ran.statuses() == STATUSES
    assert "Bad" in (ran.folder / "results" / "matrix.md").read_text()


def html_report(ran: Ran) -> None:
    all_ran(ran)
    blob = re.search(r'data-jsonblob="([^"]*)"', (ran.folder / "out.html").read_text())
    assert blob is not None
    rows = {name.partition("::")[2]: tests[0] for name, tests in json.loads(html.unescape(blob[1]))["tests"].items()}
    names = [f"{name}[local-none-0]" for name in ("Good", "Bad", "Broken")]
    assert [rows[name]["result"] for name in names] == ["Passed", "Failed", "Error"]
    assert "all is well" in rows["Good[local-none-0]"]["log"]
    assert "step &lt;17&gt;" in rows["Bad[local-none-0]"]["log"]


def allure_report(ran: Ran) -> None:
    all_ran(ran)
    results = {found["name"]: found for found in map(json.loads, _texts(ran.folder, "allure/*-result.json"))}
    statuses = {name.partition("[")[0]: found["status"] for name, found in results.items()}
    assert statuses == {"Good": "passed", "Bad": "failed", "Broken": "broken"}
    assert results["Broken[local-none-0]"]["statusDetails"]["message"].startswith("TrialBroken: ")


def json_report(ran: Ran) -> None:
    all_ran(ran)
    tests = {test["nodeid"].partition("::")[2]: test for test in ran.json("out.json")["tests"]}
    bad = tests["Bad[local-none-0]"]
    properties = {name: value for pair in bad["user_properties"] for name, value in pair.items()}
    assert (properties["aorta_cell"], properties["aorta_exit_status"]) == ("local-none", "workload_failed")
    assert Path(properties["aorta_trial_file"]).exists()
    assert "stdout=trial_0/stdout.log" in properties["aorta_artifacts"]
    assert "step <17>" in bad["call"]["longrepr"]
    assert "all is well" in tests["Good[local-none-0]"]["teardown"]["stdout"]
    assert tests["Broken[local-none-0]"]["outcome"] == "error"


def report_log(ran: Ran) -> None:
    all_ran(ran)
    reports = [json.loads(line) for line in (ran.folder / "out.log").read_text().splitlines()]
    ends = [dict(report["user_properties"]) for report in reports if report.get("when") == "teardown"]
    assert sorted(end["aorta_exit_status"] for end in ends) == sorted(
        word for words in STATUSES.values() for word in words
    )


def junit(ran: Ran) -> None:
    all_ran(ran)
    cases = ElementTree.parse(ran.folder / "out.xml").iter("testcase")
    values = {case.attrib["name"]: {each.attrib["name"]: each.attrib["value"] for each in case[0]} for case in cases}
    assert values["Bad[local-none-1]"]["aorta_exit_status"] == "workload_failed"


def teamcity(ran: Ran) -> None:
    """PyCharm shows what these messages say."""
    all_ran(ran)
    names = [f"work.{name}(local-none-{index})" for name in STATUSES for index in (0, 1)]
    shown = {
        kind: re.findall(rf"##teamcity\[{kind} .*name='([^']+)'", ran.text) for kind in ("testStarted", "testFailed")
    }
    assert sorted(shown["testStarted"]) == sorted(names)
    assert sorted(shown["testFailed"]) == sorted(name for name in names if "Good" not in name)


def half_ran(ran: Ran) -> None:
    assert ran.done.returncode == 1, ran.text + ran.done.stderr
    assert sum(map(len, ran.statuses().values())) == 3


def environment_is_seen(ran: Ran) -> None:
    all_ran(ran)
    assert "from_env" in (ran.folder / "results" / "Good" / "trial_0" / "stdout.log").read_text()


def nothing_was_picked(ran: Ran) -> None:
    assert ran.statuses() == {}


def _texts(folder: Path, pattern: str) -> list[str]:
    return [file.read_text() for file in folder.glob(pattern)]


@dataclass(frozen=True)
class Row:
    """A plugin: its modules, as ``-p`` takes them, options, and what is to be seen."""

    modules: tuple[str, ...]
    options: tuple[str, ...] = ()
    check: Callable[[Ran], None] = all_ran


ROWS = {
    "allure-pytest": Row(("allure_pytest.plugin",), ("--alluredir=allure",), allure_report),
    "pytest-asyncio": Row(("pytest_asyncio.plugin",)),
    "pytest-benchmark": Row(("pytest_benchmark.plugin",)),
    "pytest-cov": Row(("pytest_cov.plugin",), ("--cov=work", "--cov-report=")),
    "pytest-dependency": Row(("pytest_dependency",)),
    "pytest-env": Row(("pytest_env.plugin",), (), environment_is_seen),
    "pytest-flakefinder": Row(("pytest_flakefinder",)),
    "pytest-html": Row(
        ("pytest_metadata.plugin", "pytest_html.plugin", "pytest_html.fixtures"), ("--html=out.html",), html_report
    ),
    "pytest-instafail": Row(("pytest_instafail",), ("--instafail",)),
    "pytest-json-report": Row(
        ("pytest_metadata.plugin", "pytest_jsonreport.plugin"),
        ("--json-report", "--json-report-file=out.json"),
        json_report,
    ),
    "pytest-mock": Row(("pytest_mock",)),
    "pytest-order": Row(("pytest_order.plugin",)),
    "pytest-picked": Row(("pytest_picked.plugin",), ("--picked",), nothing_was_picked),
    "pytest-random-order": Row(("random_order.plugin",), ("--random-order",)),
    "pytest-randomly": Row(("pytest_randomly",)),
    "pytest-repeat": Row(("pytest_repeat",)),
    "pytest-reportlog": Row(("pytest_reportlog.plugin",), ("--report-log=out.log",), report_log),
    "pytest-rerunfailures": Row(("pytest_rerunfailures",), ("--reruns=1",), ran_again),
    "pytest-rich": Row(("pytest_rich.plugin",), ("--rich",)),
    "pytest-split": Row(("pytest_split.plugin",), ("--splits=2", "--group=1"), half_ran),
    "pytest-subtests": Row(("pytest_subtests.plugin",)),
    "pytest-sugar": Row(("pytest_sugar",), ("--force-sugar",)),
    "pytest-testmon": Row(("testmon.pytest_testmon",), ("--testmon-noselect",)),
    "pytest-timeout": Row(("pytest_timeout",), ("--timeout=100",)),
    "pytest-tldr": Row(("pytest_tldr",), (), all_ran_without_a_table),
    "pytest-xdist": Row(("xdist.plugin",), ("-n2", "--junitxml=out.xml"), junit),
    "teamcity-messages": Row(("teamcity.pytest_plugin",), ("--teamcity",), teamcity),
}


def test_the_page_has_these_rows_and_no_others() -> None:
    page = (ROOT / "docs" / "guides" / "plugins.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)`", page, re.MULTILINE) == list(ROWS)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_beside_this_run(tmp_path_factory.mktemp("plugins"), *ROWS)


@pytest.mark.downstream
@pytest.mark.parametrize("name", ROWS)
def test_trials_run_beside(name: str, python: Path, tmp_path: Path) -> None:
    row = ROWS[name]
    (tmp_path / "work.py").write_text(textwrap.dedent(WORKLOADS))
    (tmp_path / "pytest.ini").write_text("[pytest]\n" + ("env =\n    SEEN=from_env\n" if "env" in name else ""))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    # Only the one: autoloaded, they would all take part.
    plugins = [word for module in ("pytest_aorta.plugin.hooks", *row.modules) for word in ("-p", module)]
    words = ("pytest", "-W", "ignore", *plugins, "work.py", "--aorta-trials=2", *row.options)
    done = run_module(python, *words, cwd=tmp_path, timeout=300, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    row.check(Ran(done, tmp_path))
