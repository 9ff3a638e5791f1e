"""What trials import themselves is imported once for all of them, where that changes nothing that they see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, text

LAZY = """
import os
import sys

class Lazy:
    default_config = {"before": "pass"}

    def __init__(self, config): self.config = config

    def setup(self):
        exec(self.config["before"])
        self.early = "slow" in sys.modules
        import slow
        self.importer = slow.pid

    def run(self):
        import helper
        from slow import part
        return {"passed": True, "metrics": {
            "own": self.importer == os.getpid(), "early": self.early, "seen": part.seen, "argv": sys.argv[1:],
        }}
"""

PACKAGE = {
    "slow/__init__.py": "import os; pid = os.getpid(); open('imports', 'a').write('x')",
    "slow/part.py": "import os; seen = os.environ.get('SEEN')",
    "other.py": "pid = 0",
}


@pytest.fixture
def lazy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """With a workload that imports an installed package in ``setup()``, and more of it in ``run()``."""
    stage.write(lazy=LAZY, helper="import other")
    install(stage, PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(stage.path / "site-packages"))
    monkeypatch.syspath_prepend(stage.path / "site-packages")
    return stage


def install(stage: Stage, files: dict[str, str]) -> None:
    for name, source in files.items():
        stage.write_file(f"site-packages/{name}", source)
    stage.write_file("site-packages/slow-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    stage.write_file("site-packages/slow-1.0.dist-info/top_level.txt", "slow\nother\n")


def run(stage: Stage, *options: str, trials: int = 4) -> list[dict[str, Any]]:
    shared = ("--aorta-isolation", "fork")
    assert stage.run_here("lazy.py", "--aorta-trials", str(trials), *shared, *options).ret == 0
    return [stage.trial(f"Lazy/trial_{index}.json") for index in range(trials)]


def imports(stage: Stage) -> int:
    return len(Path(stage.path / "imports").read_text())


def own(records: list[dict[str, Any]]) -> list[bool]:
    """Of each trial: whether it has imported the package itself."""
    return [record["result"]["metrics"]["own"] for record in records]


def test_what_the_first_trial_imports_is_there_for_the_others(lazy: Stage) -> None:
    records = run(lazy)

    assert own(records) == [True, False, False, False]
    assert imports(lazy) == 2
    assert [record["preloaded"] for record in records] == [[], *[["slow", "other", "slow.part"]] * 3]
    assert [record["not_preloaded"] for record in records] == [None] * 4


def test_nothing_is_imported_in_advance_when_something_it_could_see_has_been_changed(lazy: Stage) -> None:
    records = run(lazy, "--aorta-config", "before=os.environ['SEEN'] = 'late'")

    assert own(records) == [True] * 4
    assert imports(lazy) == 4
    assert [record["result"]["metrics"]["seen"] for record in records] == ["late"] * 4
    assert [record["preloaded"] for record in records] == [[]] * 4
    note = "slow: os.environ had been changed before it was imported"
    assert [record["not_preloaded"] for record in records] == [note] * 4


def test_what_would_make_forks_unsafe_is_not_imported_in_advance(lazy: Stage) -> None:
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(999,), daemon=True, name='bg').start()"
    install(lazy, {"slow/part.py": f"seen = None\n{thread}"})
    records = run(lazy)

    assert own(records) == [True, False, False, False]
    assert [record["preloaded"] for record in records] == [[], *[["slow", "other"]] * 3]
    notes = {record["not_preloaded"] for record in records[1:]}
    assert notes == {"slow.part: its import in advance started Python threads: bg"}


def test_modules_that_are_named_are_imported_before_the_workload(lazy: Stage) -> None:
    records = run(lazy, "--aorta-preload", "slow", trials=2)
    asked = [record["request_fingerprint"] for record in records]

    assert own(records) == [False] * 2
    assert [record["result"]["metrics"]["early"] for record in records] == [True] * 2
    assert [record["preloaded"] for record in records] == [["slow"]] * 2
    assert not {*asked} & {record["request_fingerprint"] for record in run(lazy, trials=2)}


def test_a_module_that_is_named_and_not_there_is_an_error_that_says_so(lazy: Stage) -> None:
    result = lazy.run_here("lazy.py", "--aorta-preload", "slowe")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = "--aorta-preload slowe: its import in advance raises ModuleNotFoundError: No module named 'slowe'"
    assert said in text(result)
    assert lazy.statuses() == {"Lazy/trial_0.json": "infrastructure_failed"}


@pytest.mark.slow
def test_ranks_that_mostly_import_are_a_line_below_the_table_with_the_option_that_spares_it(lazy: Stage) -> None:
    install(lazy, {"slow/__init__.py": "import os, time; pid = os.getpid(); time.sleep(0.6)"})
    lazy.write(ranks=f"{LAZY}\n    launch_mode = 'distributed'\n    min_world_size = 2\n")
    shared = ("ranks.py", "--aorta-trials", "2", "--aorta-isolation", "fork")
    result = lazy.run_here(*shared)
    [line] = [line for line in result.outlines if line.startswith("the first rank of a trial imports slow for ")]
    assert line.endswith(": --aorta-preload slow does it once for each start")
    assert lazy.trial("Lazy/trial_1.json")["imports_sec"].keys() == {"slow"}

    result = lazy.run_here(*shared, "--aorta-preload", "slow", "-k", "none-0")
    assert "the first rank of a trial" not in text(result)
    assert lazy.trial("Lazy/trial_0.json")["imports_sec"] == {}
