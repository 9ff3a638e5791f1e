"""What one trial does to its process, no other trial sees, and not pytest."""

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
        threading.Thread(target=time.sleep, args=(1000,)).start()
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


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.long])])
def test_no_trial_sees_what_another_did(stage: Stage, monkeypatch: pytest.MonkeyPatch, isolation: str) -> None:
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
    result = stage.run("spoiler.py", *options, "--aorta-isolation", isolation)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*parent unchanged*"])
    found = [trial["result"]["metrics"] for trial in stage.trials().values()]
    umask = found[0]["umask"]
    assert found == [{**UNSPOILED, "cwd": stage.path.name, "umask": umask}] * 6
    assert stage.left_running() == []
