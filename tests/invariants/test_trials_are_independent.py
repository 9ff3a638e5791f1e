"""No trial sees what another one did to its process, or the variables of another cell; neither does pytest."""

from __future__ import annotations

import pytest
from support.stage import Stage

#: Tells what it finds, then spoils everything that it can.
SPOILER = """
import os
import signal
import sys
import textwrap
import threading
import time

imported = []

class Spoiler:
    count = 0

    def __init__(self, config): pass
    def setup(self): pass

    def run(self):
        found = {
            "spoiled": os.environ.get("SPOILED"),
            "cwd": os.path.basename(os.getcwd()),
            "patched": textwrap.dedent("  a") != "a",
            "count": type(self).count,
            "imported": len(imported),
            "threads": threading.active_count(),
            "path": "/spoiled" in sys.path,
            "umask": os.umask(0o777),
            "usr1": signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL,
            "recursion": sys.getrecursionlimit() == 9999,
        }
        found["argv"] = "spoiled" in sys.argv
        os.environ["SPOILED"] = "yes"
        os.environ.pop("KEPT", None)
        os.chdir("/")
        textwrap.dedent = lambda text: "spoiled"
        type(self).count += 1
        imported.append(1)
        sys.path.insert(0, "/spoiled")
        sys.argv.append("spoiled")
        sys.setrecursionlimit(9999)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        return {"passed": True, "metrics": found}
"""

UNSPOILED = {
    "spoiled": None,
    "patched": False,
    "count": 0,
    "imported": 0,
    "threads": 1,
    "path": False,
    "usr1": True,
    "recursion": False,
    "argv": False,
}


def test_no_trial_sees_what_another_did(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    stage.write(
        spoiler=SPOILER,
        conftest="""
        import os, sys, textwrap

        before = dict(os.environ)

        def pytest_sessionfinish():
            now = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
            assert now == {k: v for k, v in before.items() if k != "PYTEST_CURRENT_TEST"}
            assert os.environ["KEPT"] == "1"
            assert textwrap.dedent("  a") == "a"
            assert "/spoiled" not in sys.path
            print("parent unchanged")
        """,
    )
    options = ("--aorta-trials", "3", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    result = stage.run("spoiler.py", *options)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*parent unchanged*"])
    found = [trial["result"]["metrics"] for trial in stage.trials().values()]
    umask = found[0]["umask"]
    assert found == [{**UNSPOILED, "cwd": stage.path.name, "umask": umask}] * 6
    assert stage.left_running() == []


def test_variables_of_one_cell_are_not_seen_in_another(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_OUTER", "outer")
    stage.write(
        looker="""
        import os

        AT_IMPORT = {k: v for k, v in os.environ.items() if k.startswith("SEEN_")}

        class Looker:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                now = {k: v for k, v in os.environ.items() if k.startswith("SEEN_")}
                return {"passed": now == AT_IMPORT, "metrics": now}
        """
    )
    stage.write_registry(
        mitigations={
            "one": {"SEEN_A": "1", "SEEN_B": "1"},
            "two": {"SEEN_B": "2", "SEEN_C": "2"},
            "over": {"SEEN_OUTER": ""},
        },
        environments={"base": {"env": {"SEEN_A": "base", "SEEN_ENV": "base"}}},
    )
    sets = ("none", "one", "one,two", "two,one", "over")
    result = stage.run(
        *("looker.py", "--aorta-trials", "2", "--aorta-registry-file", "registry.json"),
        *(word for names in sets for word in ("--aorta-mitigations", names)),
        *("--aorta-environment", "local", "--aorta-environment", "base"),
    )
    result.assert_outcomes(passed=2 * 5 * 2)
    base = {"SEEN_A": "base", "SEEN_ENV": "base"}
    sets_see: dict[str, dict[str, str]] = {
        "none": {},
        "one": {"SEEN_A": "1", "SEEN_B": "1"},
        "one+two": {"SEEN_A": "1", "SEEN_B": "2", "SEEN_C": "2"},  # later wins
        "two+one": {"SEEN_A": "1", "SEEN_B": "1", "SEEN_C": "2"},
        "over": {"SEEN_OUTER": ""},
    }
    for path, trial in stage.trials().items():
        environment, _, names = path.split("/")[1].partition("-")
        expected = {"SEEN_OUTER": "outer", **(base if environment == "base" else {}), **sets_see[names]}
        assert trial["result"]["metrics"] == expected, path
        # Recorded is what any cell sets, so that each says what it had of that.
        assert {k: v for k, v in trial["env"]["env_vars"].items() if k.startswith("SEEN_")} == expected, path
