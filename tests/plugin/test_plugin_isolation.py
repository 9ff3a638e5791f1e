"""What one trial does to its process, nobody else sees: not the next trial, and not pytest."""

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


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
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
        # Recorded is what was set for the trial, and nothing of what was there anyway.
        overlay = {k: v for k, v in expected.items() if (k, v) != ("SEEN_OUTER", "outer")}
        assert {k: v for k, v in trial["env"]["env_vars"].items() if k.startswith("SEEN_")} == overlay, path


def test_without_isolation_variables_are_set_for_the_trial_and_taken_back(stage: Stage) -> None:
    stage.write(
        inside="""
        import os

        class Inside:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                seen = {k: v for k, v in os.environ.items() if k.startswith("SEEN_")}
                return {"passed": True, "metrics": {**seen, "pid": os.getpid()}}
        """,
        conftest="""
        import os
        import pytest

        @pytest.fixture
        def aorta_extra_env(request):
            return {"SEEN_FIXTURE": request.node.name}

        def pytest_sessionfinish():
            assert not [name for name in os.environ if name.startswith("SEEN_")]
            print("pid", os.getpid())
        """,
    )
    stage.write_registry(mitigations={"one": {"SEEN_A": "1"}})
    result = stage.run(
        *("inside.py", "--aorta-isolation", "none", "--aorta-registry-file", "registry.json"),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "one", "--aorta-trials", "2"),
    )
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.OK
    pids = set()
    for path, trial in stage.trials().items():
        metrics = trial["result"]["metrics"]
        pids.add(metrics.pop("pid"))
        cell = path.split("/")[1]
        index = path.removesuffix(".json")[-1]
        expected = {"SEEN_FIXTURE": f"Inside[{cell}-{index}]", **({"SEEN_A": "1"} if cell == "local-one" else {})}
        assert metrics == expected
        assert trial["env"]["env_vars"].items() >= expected.items()
    result.stdout.fnmatch_lines([f"*pid {pids.pop()}*"])
    assert not pids


def test_without_isolation_an_exception_shows_its_own_traceback(stage: Stage) -> None:
    stage.write(
        inside="""
        class InRun:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                secret_of_run = 1
                return secret_of_run / 0

        class InSetup(InRun):
            def setup(self): raise LookupError("no device")

        class InCleanup(InRun):
            def run(self): return {"passed": True}
            def cleanup(self): raise OSError("device busy")

        class NotPassed(InRun):
            def run(self): return {"passed": False}
        """
    )
    result = stage.run("inside.py", "--aorta-isolation", "none", "-v")
    result.assert_outcomes(passed=1, failed=2, errors=2)
    result.stdout.fnmatch_lines([">*return secret_of_run / 0", "E*ZeroDivisionError: division by zero"])
    result.stdout.no_fnmatch_line("*/pytest_aorta/*")
    assert {name.partition("[")[0]: found for name, found in stage.words(result).items()} == {
        "InRun": ["FAILED"],
        "InSetup": ["ERROR"],
        "InCleanup": ["PASSED", "ERROR"],
        "NotPassed": ["FAILED"],
    }
    assert stage.statuses() == {
        "InCleanup/trial_0.json": "ok",
        "InRun/trial_0.json": "workload_failed",
        "InSetup/trial_0.json": "infrastructure_failed",
        "NotPassed/trial_0.json": "workload_failed",
    }
    assert stage.trial("InCleanup/trial_0.json")["failure"]["phase"] == "cleanup"


@pytest.mark.parametrize(
    "arguments", [(), ("-n", "2"), ("--aorta-workload", "threaded")], ids=["file", "xdist", "name"]
)
def test_module_that_starts_a_thread_falls_back_to_fresh_interpreters(stage: Stage, arguments: tuple[str, ...]) -> None:
    stage.write(
        threaded="""
        import os
        import threading
        import time

        threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="prefetcher").start()
        PID = os.getpid()

        class Threaded:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": PID == os.getpid(), "metrics": {"pid": PID}}
        """
    )
    stage.register(threaded="threaded:Threaded")
    result = stage.run(*(arguments if "threaded" in arguments else (*arguments, "threaded.py")), "--aorta-trials", "3")
    result.assert_outcomes(passed=3, warnings=2 if "-n" in arguments else 1)
    result.stdout.fnmatch_lines(["*PytestWarning: importing *threaded.py started Python threads: prefetcher; *"])
    assert len({trial["result"]["metrics"]["pid"] for trial in stage.trials().values()}) == 3
    assert stage.left_running() == []


def test_trial_that_garbles_what_it_says_still_has_its_file(stage: Stage) -> None:
    stage.write(
        garbler="""
        import json

        class Garbler:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                json.dumps = lambda *args, **kwargs: "garbled"
                return {"passed": True}
        """
    )
    result = stage.run("garbler.py", "--aorta-trials", "2")
    result.assert_outcomes(failed=2)
    assert stage.statuses() == {f"Garbler/trial_{index}.json": "workload_failed" for index in range(2)}
    assert stage.left_running() == []


def test_forks_share_what_was_imported_but_not_their_random_numbers(stage: Stage) -> None:
    stage.write(
        dice="""
        import os
        import random

        ZYGOTE = os.getpid()

        class Dice:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": True, "metrics": {"zygote": ZYGOTE, "roll": random.random()}}
        """
    )
    stage.run("dice.py", "--aorta-trials", "4").assert_outcomes(passed=4)
    metrics = [trial["result"]["metrics"] for trial in stage.trials().values()]
    assert len({found["zygote"] for found in metrics}) == 1
    assert len({found["roll"] for found in metrics}) == 4


def test_trial_cannot_read_what_is_typed_nor_write_to_the_terminal(stage: Stage) -> None:
    stage.write(
        reader="""
        import os
        import sys

        class Reader:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                os.write(1, b"native noise\\n")
                os.write(2, b"more native noise\\n")
                print("python noise", flush=True)
                return {"passed": sys.stdin.read() == "", "metrics": {"session": os.getsid(0) == os.getpid()}}
        """
    )
    result = stage.run("reader.py", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*noise*")
    result.stderr.no_fnmatch_line("*noise*")
    assert stage.trial("Reader/trial_0.json")["result"]["metrics"] == {"session": True}
