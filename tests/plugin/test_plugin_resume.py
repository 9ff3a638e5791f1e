"""``--aorta-resume``: a trial that has a result of this very request is not run, and shows as it did."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stage import Stage

FAULTY = Path(__file__).with_name("faulty_workloads.py")

#: Every run of a trial leaves a line in the ledger.
COUNTS = """
import os

class Counts:
    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self):
        fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"%d\\n" % os.getpid())
        return {"passed": True, "metrics": dict(self.config)}
"""

#: Ways to run pytest.
WAYS = {"plain": (), "xdist": ("-n", "2"), "slots": ("--aorta-slots", "2"), "host": ("--aorta-host", "popen")}
SOME_WAYS = [
    "plain",
    *(pytest.param(way, marks=[pytest.mark.slow, pytest.mark.long]) for way in ("xdist", "slots", "host")),
]


@pytest.fixture
def counts(stage: Stage) -> Stage:
    stage.write(counts=COUNTS)
    stage.register(counts="counts:Counts")
    return stage


def runs(stage: Stage) -> int:
    ledger = stage.path / "ledger"
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


def contents(stage: Stage) -> dict[str, tuple[bytes, int]]:
    """What a trial file is, and when it was written."""
    return {name: ((stage.results / name).read_bytes(), (stage.results / name).stat().st_ino) for name in stage.files()}


def run(stage: Stage, *options: str, trials: int = 4) -> pytest.RunResult:
    start = stage.run if "-n" in options else stage.run_here
    return start("--aorta-workload", "counts", "--aorta-trials", str(trials), *options)


@pytest.mark.parametrize("way", SOME_WAYS)
def test_nothing_runs_twice_and_what_is_missing_runs(counts: Stage, way: str) -> None:
    run(counts, *WAYS[way]).assert_outcomes(passed=4)
    before = contents(counts)
    again = run(counts, "--aorta-resume", *WAYS[way])
    again.assert_outcomes(passed=4)
    again.stdout.fnmatch_lines(["counts local-none  0 of 4 *", "4 of 4 trials had a result already (--aorta-resume)"])
    assert (runs(counts), contents(counts)) == (4, before)

    for index in (1, 2):
        (counts.results / f"counts/trial_{index}.json").unlink()
    again = run(counts, "--aorta-resume", *WAYS[way], trials=6)
    again.assert_outcomes(passed=6)
    again.stdout.fnmatch_lines(["2 of 6 trials had a result already (--aorta-resume)"])
    after = contents(counts)
    assert (runs(counts), len(after)) == (8, 6)
    assert all(after[f"counts/trial_{index}.json"] == before[f"counts/trial_{index}.json"] for index in (0, 3))
    assert counts.earlier() == []
    assert counts.left_running() == []


ALL_STATUSES = {
    "passes": "Passes",
    "raises": "RaisesInRun",
    "refuses": "ReturnsFalse",
    "crashes": "SegfaultsInRun",
    "hangs": "HangsPolitelyInRun",
    "unclean": "RaisesInCleanup",
    "twice": "FailsInRunAndCleanup",
}


def test_it_shows_as_it_did(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.register(**{name: f"faulty_workloads:{cls}" for name, cls in ALL_STATUSES.items()})
    options = ["--aorta-slots", "3", *(word for name in ALL_STATUSES for word in ("--aorta-workload", name))]
    first = stage.run(*options, "-v", "-p", "no:cacheprovider")
    before = contents(stage)
    again = stage.run(*options, "-v", "-p", "no:cacheprovider", "--aorta-resume")
    assert again.ret == first.ret == pytest.ExitCode.TESTS_FAILED
    assert again.parseoutcomes() == first.parseoutcomes()
    assert stage.words(again) == stage.words(first)
    assert stage.words(again)["hangs[local-none-0]"] == ["TIMEOUT"]
    again.stdout.fnmatch_lines(["trial file: */raises/trial_0.json", "run it again: pytest *"])
    again.stdout.fnmatch_lines(["7 of 7 trials had a result already (--aorta-resume)", "FAILED *ValueError: loss*"])
    assert contents(stage) == before


def test_trials_of_a_cell_with_different_numbers_of_slots_are_noted(counts: Stage) -> None:
    run(counts, trials=1)
    again = run(counts, "--aorta-resume", "--aorta-slots", "2", trials=3)
    again.stdout.fnmatch_lines(
        ["trials of counts local-none ran with different numbers of slots: 1 with 1 and 2 with 2"]
    )


@pytest.mark.slow
def test_a_plan_that_has_grown_takes_its_results_along(counts: Stage) -> None:
    counts.write_registry(mitigations={"blue": {"SHADE": "blue"}})
    run(counts)
    before = contents(counts)
    cells = ("--aorta-mitigations", "blue", "--aorta-mitigations", "none")
    again = run(counts, "--aorta-resume", "--aorta-registry-file", "registry.json", *cells)
    again.assert_outcomes(passed=8)
    again.stdout.fnmatch_lines(["4 of 8 trials had a result already (--aorta-resume)"])
    assert (runs(counts), counts.earlier()) == (8, [])
    after = contents(counts)
    assert sorted(after) == sorted(f"counts/local-{name}/trial_{i}.json" for name in ("blue", "none") for i in range(4))
    for index in range(4):
        # What was the first mitigation set of the plan is the second one now; nothing else has changed.
        kept = after[f"counts/local-none/trial_{index}.json"][0]
        assert kept == before[f"counts/trial_{index}.json"][0].replace(b"_d0_m0_t", b"_d0_m1_t")
        assert (counts.results / "counts" / "local-none" / f"trial_{index}" / "stdout.log").exists()


@pytest.mark.slow
def test_trials_of_tests(counts: Stage) -> None:
    counts.write(
        test_it="""
        import pytest

        def test_one(aorta_run):
            assert aorta_run("counts").exit_status == "ok"
            assert aorta_run("counts", config={"a": 1}).result.metrics == {"a": 1}

        @pytest.mark.aorta(trials=2)
        def test_several(aorta_run):
            assert aorta_run("counts").trial_index == aorta_run.index
        """
    )
    for _ in range(2):
        result = counts.run_here("test_it.py", "--aorta-resume")
        result.assert_outcomes(passed=3)
        assert runs(counts) == 4
    result.stdout.fnmatch_lines(["4 of 4 trials had a result already (--aorta-resume)"])
    assert counts.earlier() == []


def test_run_trials(counts: Stage) -> None:
    counts.write(
        script="""
        from pytest_aorta import Execution, RunRequest, run_trials

        here = Execution(isolation="none")
        first = run_trials(RunRequest("counts", 3, execution=here))
        again = run_trials(RunRequest("counts", 4, execution=here, resume=True))
        assert again[:3] == first
        assert len(again) == 4
        """
    )
    assert counts.command(sys.executable, "script.py").ret == 0
    assert (runs(counts), counts.earlier()) == (4, [])


@pytest.mark.slow
def test_a_result_gives_way_only_to_a_trial_that_has_started(counts: Stage) -> None:
    """What went wrong before says nothing about it: here a fixture, or the import."""
    run(counts)
    before = contents(counts)
    counts.write(conftest="import pytest\n@pytest.fixture(autouse=True)\ndef broken(): raise OSError('no such volume')")
    run(counts, "--aorta-resume").assert_outcomes(errors=4)
    assert contents(counts) == before
    (counts.path / "conftest.py").unlink()
    counts.write(counts="import no_such_module\n" + COUNTS)
    run(counts, "--aorta-resume").assert_outcomes(errors=4)
    assert contents(counts) == before
    counts.write(counts=COUNTS)
    run(counts, "--aorta-resume").assert_outcomes(passed=4)
    assert (contents(counts), runs(counts)) == (before, 4)


def test_a_deadline_before_run_says_nothing_about_the_workload(counts: Stage) -> None:
    hangs = "def setup(self): os.path.exists('repaired') or __import__('time').sleep(1000)"
    counts.write(counts=COUNTS.replace("def setup(self): pass", hangs))
    run(counts, "--aorta-timeout", "3", trials=1).assert_outcomes(errors=1)
    (counts.path / "repaired").touch()
    again = run(counts, "--aorta-resume", trials=1)
    again.assert_outcomes(passed=1)
    again.stdout.fnmatch_lines(
        ["1 earlier result not kept: timeout before run(), which says nothing about the workload"]
    )


#: Of the trials without the variable SHADE, the first one dies in its setup; in the first run only.
ONE_DIES = """
try:
            os.environ.get("SHADE") or os.close(os.open("died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.environ.get("SHADE") or os._exit(1)
"""


@pytest.mark.slow
def test_a_cell_that_has_lost_a_trial_runs_again_as_a_whole(counts: Stage) -> None:
    counts.write(counts=COUNTS.replace("def setup(self): pass", f"def setup(self):\n        {ONE_DIES.strip()}"))
    counts.write_registry(mitigations={"blue": {"SHADE": "blue"}})
    cells = ("--aorta-mitigations", "blue", "--aorta-mitigations", "none", "--aorta-registry-file", "registry.json")
    run(counts, *cells, trials=3).assert_outcomes(passed=5, errors=1)
    before = contents(counts)
    again = run(counts, "--aorta-resume", *cells, trials=3)
    again.assert_outcomes(passed=6)
    again.stdout.fnmatch_lines(
        [
            "3 of 6 trials had a result already (--aorta-resume)",
            "2 earlier results not kept: their cell has lost trials (1); to repeat only those would select by outcome",
        ]
    )
    again.stdout.fnmatch_lines(["1 earlier result not kept: infrastructure_failed, which says nothing *"])
    after = contents(counts)
    assert {name for name in after if after[name] == before[name]} == {
        f"counts/local-blue/trial_{index}.json" for index in range(3)
    }
    run(counts, "--aorta-resume", *cells, trials=3)
    assert contents(counts) == after


# Why an earlier result was not kept

READS = """
class Reads:
    data_files = ["golden.txt"]
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        import helper  # not before
        with open("golden.txt") as golden:
            return {"passed": helper.VALUE == int(golden.read())}
"""


@pytest.fixture
def reads(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    stage.write(reads=READS, helper="VALUE = 1")
    stage.write_file("golden.txt", "1")
    stage.register(reads="reads:Reads")
    return stage


def reasons(stage: Stage, *options: str) -> list[str]:
    result = stage.run_here("--aorta-workload", "reads", "--aorta-trials", "2", "--aorta-resume", *options)
    result.assert_outcomes(passed=2)
    said = [line for line in result.outlines if "not kept" in line]
    below = [line for line in said if not line.startswith("aorta: ")]
    assert said == [*(f"aorta: {line}" for line in below), *below]  # before the first trial, and below the table
    return below


@pytest.mark.slow
def test_every_change_is_named(reads: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = "stage_workloads-1.0.dist-info/METADATA"
    version_2 = (reads.path / metadata).read_text().replace("1.0", "2.0")
    assert reasons(reads) == []
    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: monkeypatch.setenv("OMP_NUM_THREADS", "4"), "OMP_NUM_THREADS unset -> 4"),
        (lambda: monkeypatch.setenv("OMP_NUM_THREADS", "1"), "OMP_NUM_THREADS 4 -> 1"),
        (lambda: reads.write(helper="VALUE = 1  # still"), "helper.py changed"),
        (lambda: reads.write_file("golden.txt", "01"), "golden.txt changed"),
        (lambda: reads.write(reads=READS + "# another thought"), "reads.py changed"),
        (lambda: (reads.path / metadata).write_text(version_2), "stage-workloads 1.0 -> 2.0"),
    ]
    for change, line in changes:
        change()
        assert reasons(reads) == [f"2 earlier results not kept: {line}"]
    assert reasons(reads) == []
    parts = reads.trial("reads/trial_1.json")["fingerprint_parts"]
    assert (list(parts["imported_later"]), list(parts["sources"])) == (["helper.py", "golden.txt"], ["reads.py"])
    assert parts["variables"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.slow
def test_what_a_trial_has_not_imported_changes_nothing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "lib" / "python3" / "site-packages"
    for name, requires in (("used", "needed"), ("needed", ""), ("idle", ""), ("gone", "")):
        distribution(site, name, "1.0", requires)
    monkeypatch.setenv("PYTHONPATH", str(site))
    stage.write(train="import used")

    def kept(script: str) -> list[str]:
        words = ("-q", "--aorta-command", f"{sys.executable} {script}.py", "--aorta-resume")
        return [line.removeprefix("aorta: ") for line in stage.run(*words).outlines if line.startswith("aorta: ")]

    assert kept("train") == []
    assert stage.trial("command-train/trial_0.json")["fingerprint_parts"]["imported_modules"].count("used") == 1
    distribution(site, "idle", "2.0")
    distribution(site, "another", "1.0")
    shutil.rmtree(site / "gone-1.0.dist-info")
    assert kept("train") == ["--aorta-resume keeps 1 earlier result of 1"]
    distribution(site, "needed", "1.1")
    assert kept("train") == [
        "--aorta-resume keeps 0 earlier results of 1",
        "1 earlier result not kept: needed 1.0 -> 1.1",
    ]


def distribution(site: Path, name: str, version: str, requires: str = "") -> None:
    """As pip leaves it, in place of another version; its module does nothing."""
    for other in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(other)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requires}"] if requires else []
    (info / "METADATA").write_text("\n".join(lines))
    (info / "top_level.txt").write_text(name)
    (site / f"{name}.py").write_text("")


@pytest.mark.slow
def test_a_job_s_own_variables_do_not_count_and_secrets_are_not_shown(
    reads: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, devices, expected in (
        ("1", "0,1", []),
        ("2", "2,3", []),
        ("2", "2", ["2 earlier results not kept: CUDA_VISIBLE_DEVICES 2 listed -> 1 listed"]),
    ):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        assert reasons(reads) == expected
    assert reasons(reads, "--aorta-extra-env", "MINE=hush") == ["2 earlier results not kept: MINE unset -> <redacted>"]
    assert reasons(reads, "--aorta-extra-env", "MINE=whisper") == ["2 earlier results not kept: MINE changed"]


def test_a_declared_file_that_is_not_there_is_a_warning(reads: Stage) -> None:
    reads.write(reads=READS.replace('"golden.txt"]', '"golden.txt", "gold.txt"]'))
    result = reads.run_here("--aorta-workload", "reads", "--aorta-trials", "2")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*data_files of reads names 'gold.txt', which is not there"])


_OPENS = """
import os
from pathlib import Path

class Opens:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        text = Path("data/tokens.txt").read_text()
        Path("results/of_earlier_trials.txt").read_text()
        with open("cache.bin", "w") as file:
            file.write(str(os.getpid()))
        with open("cache.bin") as file:
            file.read()
        open("/etc/hostname").close() if os.path.exists("/etc/hostname") else None
        return {"passed": True, "metrics": {"length": len(text)}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_a_trial_depends_on_the_files_below_the_project_that_it_only_reads(stage: Stage, isolation: str) -> None:
    stage.write(opens=_OPENS)
    stage.register(opens="opens:Opens")
    data = stage.path / "data" / "tokens.txt"
    data.parent.mkdir()
    data.write_text("abc")
    (stage.path / "results").mkdir()
    (stage.path / "results" / "of_earlier_trials.txt").write_text("1")
    words = ("--aorta-workload", "opens", "--aorta-resume", "-rs", "--aorta-isolation", isolation)
    stage.run(*words).assert_outcomes(passed=1)
    noted = stage.trial("opens/trial_0.json")["fingerprint_parts"]["imported_later"]
    assert [*noted] == ["data/tokens.txt"]
    before = contents(stage)
    stage.run(*words).assert_outcomes(passed=1)
    assert contents(stage) == before
    data.write_text("abcd")
    done = stage.run(*words)
    done.assert_outcomes(passed=1)
    assert contents(stage) != before
    assert "tokens.txt changed" in done.stdout.str()
    assert stage.trial("opens/trial_0.json")["result"]["metrics"] == {"length": 4}
