"""The process of a trial: what it does is seen neither by the next one nor by pytest, which shows what it prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.stage import Stage, text

from pytest_aorta.plugin.trial_item import LogStream


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
        *("--aorta-mitigations", "none", "--aorta-mitigations", "one", "--aorta-trials", "2", "--aorta-slots", "2"),
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


def test_without_isolation_an_exception_shows_its_own_traceback(faulty: Stage) -> None:
    faulty.write(
        leaves="""
        from pytest_aorta import Workload

        class Leaves(Workload):
            def setup(self): pass
            def run(self): raise SystemExit(3)
        """
    )
    ends = {
        "RaisesInRun": (["FAILED"], "workload_failed"),
        "RaisesInSetup": (["ERROR"], "infrastructure_failed"),
        "RaisesInCleanup": (["PASSED", "ERROR"], "ok"),
        "ReturnsFalse": (["FAILED"], "workload_failed"),
        "Leaves": (["FAILED"], "workload_failed"),
    }
    names = [f"faulty_workloads.py::{name}" for name in ends if name != "Leaves"]
    result = faulty.run("leaves.py", *names, "--aorta-isolation", "none", "-v")
    words = {name.partition("[")[0]: each for name, each in faulty.words(result).items()}
    seen = {trial["workload"]: trial["exit_status"] for trial in faulty.trials().values()}
    assert {name: (words[name], status) for name, status in seen.items()} == ends
    assert faulty.trial("Leaves/trial_0.json")["failure"]["exit_code"] == 3
    assert faulty.trial("RaisesInCleanup/trial_0.json")["failure"]["phase"] == "cleanup"
    result.stdout.fnmatch_lines([">*raise ValueError(*)", "E*ValueError: loss is nan"])
    result.stdout.no_fnmatch_line("*/pytest_aorta/*")


@pytest.mark.parametrize(("fields", "what"), [({"venv": "/opt/venv"}, "a venv"), ({"launcher": "nice"}, "a launcher")])
def test_what_needs_a_process_of_its_own_is_refused_without_isolation(
    stage: Stage, fields: dict[str, str], what: str
) -> None:
    stage.write_registry(environments={"elsewhere": fields})
    options = ("--aorta-registry-file", "registry.json", "--aorta-environment", "elsewhere")
    result = stage.run_here("--aorta-workload", "gemm", "--aorta-isolation", "none", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*environment 'elsewhere' * has {what}, but with --aorta-isolation none*"])


@pytest.mark.slow
def test_pdb_alone_says_how_to_debug_inside(faulty: Stage) -> None:
    raises = ("--aorta-workload", "raises")
    outside = faulty.run(*raises, "--pdb").stdout.str()
    [hint] = [line for line in outside.splitlines() if "To debug inside: " in line]
    assert outside.index(hint) < outside.index("entering PDB")
    command = shlex.split(hint.partition("To debug inside: ")[2])
    inside = faulty.run_here(*command[1:])
    inside.stdout.fnmatch_lines(["*entering PDB*", "> *faulty_workloads.py(*)run()"])
    inside.stdout.no_fnmatch_line("*To debug inside*")
    faulty.run_here(*raises).stdout.no_fnmatch_line("*To debug inside*")


TALKS = """
import os, sys

class Talks:
    def __init__(self, config): pass
    def setup(self): print("in setup", os.environ.get("WORD"))
    def run(self):
        os.write(2, b"in run \\x1b[2J\\n")
        return {"passed": sys.stdin.read() == "", "metrics": {"session": os.getsid(0) == os.getpid()}}
    def cleanup(self): print("in cleanup")
"""


@pytest.mark.slow
def test_a_trial_reads_nothing_that_is_typed_and_its_output_is_shown_where_that_is_asked_for(stage: Stage) -> None:
    stage.write(talks=TALKS)
    result = stage.run("talks.py", "--aorta-extra-env=WORD=monday")
    result.assert_outcomes(passed=1)
    assert not any(words in text(result) for words in ("in setup", "in run", "in cleanup"))
    assert stage.trial("Talks/trial_0.json")["result"]["metrics"] == {"session": True}
    # Once, and no earlier one.
    for isolation in ("fork", "none"):
        options = ("--aorta-trials=2", "--aorta-isolation", isolation, "--aorta-extra-env=WORD=tuesday")
        said = text(stage.run("talks.py", "-s", *options))
        assert [said.count(words) for words in ("in setup tuesday", "in run", "in cleanup", "monday")] == [2, 2, 2, 0]
        if isolation != "none":  # where the workload itself writes to the terminal
            assert "\x1b[2J" not in said


def test_a_log_is_followed_across_pieces_of_characters_and_cuts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stderr.log").write_text("earlier")
    stream = LogStream(tmp_path, begun=False)
    with (tmp_path / "stdout.log").open("wb", buffering=0) as log:
        log.write("ü".encode()[:1])
        log.write("ü".encode()[1:] + b"\n")
    stream.close()
    assert capfd.readouterr().out == "ü\n"


REPRO = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    class Item:
        def __init__(self, value):
            self.value = value

    def double(item):
        return Item(2 * item.value)

    class Repro:
        def __init__(self, config):
            self.method = config["method"]

        default_config = {"method": "spawn"}

        def setup(self):
            pass

        def run(self):
            context = multiprocessing.get_context(self.method)
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                return {"passed": pool.submit(double, Item(21)).result().value == 42}
"""


@pytest.mark.parametrize(
    ("isolation", "method"),
    [("fork", "spawn"), ("none", "spawn"), pytest.param("fork", "forkserver", marks=pytest.mark.slow)],
)
def test_a_pool_of_a_file_workload(stage: Stage, isolation: str, method: str) -> None:
    stage.write(my_repro=REPRO)
    result = stage.run_here("my_repro.py", "--aorta-isolation", isolation, "--aorta-config", f"method={method}")
    result.assert_outcomes(passed=1)
