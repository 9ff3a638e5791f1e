"""``pytest-aorta bisect``: real trials of commits, versions and values."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_distributions import use_index, write_wheel
from support.stage import Stage, text

_BY_SIZE = """
    import os

    class BySize:
        def __init__(self, config): pass
        def setup(self): pass
        def run(self):
            return {"passed": int(os.environ["SIZE"]) < 32}
"""


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, subject: str, **files: str) -> None:
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", subject)


@pytest.fixture
def by_size(stage: Stage) -> Stage:
    stage.write(by_size=_BY_SIZE)
    stage.register(by_size="by_size:BySize")
    return stage


def test_the_value_from_which_on_it_fails_is_found(by_size: Stage) -> None:
    done = by_size.aorta("bisect", "--values", "SIZE=4,8,16,32,64,128", "--aorta-workload", "by_size")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "by_size: from SIZE=32 on it fails more often: * failed, 0 of * before it (probability *%); fresh trials "
            "confirm it: * against 0 of * of SIZE=16 (p = *)",
            "position * failed * probability of a change here",
            "SIZE=16 * 0 of *",
            "SIZE=32 * of * 9*%",
        ]
    )
    found = json.loads((by_size.results / "bisect-by_size.json").read_text())
    assert (found["end"], found["positions"][found["first"]]) == ("change", "SIZE=32")
    assert sum(found["trials"]) == len(by_size.files())


def test_what_does_not_change_within_the_budget_has_exit_status_1(by_size: Stage) -> None:
    done = by_size.aorta(
        "bisect", "--values", "SIZE=4,8", "--max-trials", "6", "--aorta-workload", "by_size", "--confidence", "0.99"
    )
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "not found in 6 trials (--max-trials); the most likely is *",
        ]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "bisect: expected one of --commits, --versions, --values and --environments"),
        (("--values", "A=1,2", "--environments", "a,b"), "bisect: expected one of --commits, --versions, "),
        (("--values", "A=1,2", "--build", "make"), "bisect: --build belongs to --commits, not to --values"),
        (("--commits", "HEAD"), "--commits 'HEAD': expected OLD..NEW, such as v1.0..HEAD"),
        (("--commits", "HEAD..HEAD~1"), "--commits 'HEAD..HEAD~1': HEAD is no ancestor of HEAD~1; the repository is "),
        (("--commits", "HEAD..HEAD"), "--commits 'HEAD..HEAD': there is no commit after HEAD"),
        (("--commits", "v1..HEAD"), "--commits 'v1..HEAD': Not a valid object name v1; the repository is "),
        (("--commits", "HEAD~1..HEAD", "--prior-path", "*.py=x"), "--prior-path '*.py=x': expected GLOB=WEIGHT"),
        (("--commits", "HEAD~1..HEAD", "--prior-text", "(=2"), "--prior-text '(=2': expected REGEX=WEIGHT"),
        (
            ("--commits", "HEAD~1..HEAD", "--build", "pip install -i https://me:hush@index/ x"),
            "bisect: --build may hold a secret, and records name it",
        ),
        (("--versions", "numpy"), "--versions 'numpy': expected PACKAGE==A,B,C or PACKAGE==A..C"),
        (("--values", "A=1"), "--values 'A=1': expected a variable and at least two values"),
        (("--environments", "local,nowhere"), "unknown environment 'nowhere'"),
    ],
)
def test_what_cannot_be_bisected_is_refused(stage: Stage, words: tuple[str, ...], message: str) -> None:
    git(stage.path, "init", "-q")
    commit(stage.path, "one")
    commit(stage.path, "two")
    done = stage.aorta("bisect", *words, "--", "true")
    assert done.ret == 4
    assert message in text(done)
    assert not stage.results.exists()


def test_a_file_that_would_be_the_same_for_every_commit_is_refused(stage: Stage) -> None:
    git(stage.path, "init", "-q")
    (stage.path / "train.py").write_text("")
    commit(stage.path, "one")
    commit(stage.path, "two")
    done = stage.aorta("bisect", "--commits", "HEAD~1..HEAD", "--", "python", str(stage.path / "train.py"))
    assert done.ret == 4
    assert "train.py is named by its absolute path, and would be the same file for every commit" in text(done)


_TRAIN = """
import os, random, signal, time
ORDER, RATE = {order}, {rate}
{more}
if random.Random(f"{{ORDER}} {{os.environ['AORTA_TRIAL']}}").random() < RATE:  # the same trials in each run
    raise SystemExit("loss is nan")
"""

#: What is special about a commit of 64: no build, a hang, a crash.
_SPECIAL = {12: "hang", 33: "crash", **dict.fromkeys((5, 20, 21, 40, 50), "no build")}

#: Likewise of 20, the first of which that fails is the 10th.
_SPECIAL_OF_FEW = {3: "hang", 12: "crash", **dict.fromkeys((5, 6, 15), "no build")}

_MORE = {"hang": "time.sleep(3600)", "crash": "os.kill(os.getpid(), signal.SIGSEGV)"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("special", "number", "change", "rate"),
    [(_SPECIAL_OF_FEW, 20, 9, 0.6), pytest.param(_SPECIAL, 64, 27, 0.3, marks=pytest.mark.long)],
    ids=["20 commits", "64 commits"],
)
def test_the_commit_that_makes_it_fail_is_found_also_after_a_kill(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, special: dict[int, str], number: int, change: int, rate: float
) -> None:
    repository = stage.path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    for each in range(number):
        what = special.get(each, "")
        train = _TRAIN.format(order=each, rate=rate if each >= change else 0, more=_MORE.get(what, f"# {each}"))
        commit(
            repository,
            f"change {each}, {'as it was ' * 9}",
            train=train,
            builds=f"raise SystemExit({what == 'no build'})",
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(stage.path / "cache"))
    words = [
        "bisect",
        "--commits",
        f"HEAD~{number - 1}..HEAD",
        "--repo",
        str(repository),
        "--build",
        f"{sys.executable} builds.py",
    ]
    words += ["--signature", "loss is nan", "--aorta-timeout", "20", "--aorta-slots", "2"]
    last = ["--", sys.executable, "train.py"]

    process = stage.start_command(sys.executable, "-m", "pytest_aorta", *words, *last)
    stage.wait_until(lambda: len(stage.files()) >= 10)
    os.kill(process.pid, signal.SIGKILL)
    stage.finish(process)
    stage.wait_until_alone()
    before = stage.trials()
    assert not [path for path in before if "bisect-" in path]

    done = stage.aorta(*words, "--aorta-resume", *last)
    assert done.ret == 0, text(done)
    wanted = git(repository, "rev-parse", f"HEAD~{number - 1 - change}")[:10]
    done.stdout.fnmatch_lines(
        [
            "* had a result already (--aorta-resume)",
            f"*: from {wanted} change {change}, as it was as it was * ... on it fails more often: *",
        ]
    )
    after = stage.trials()
    # What could not run is tried again.
    ran = {path: trial for path, trial in before.items() if trial["exit_status"] != "infrastructure_failed"}
    assert {path: after[path]["trial_id"] for path in ran} == {path: trial["trial_id"] for path, trial in ran.items()}
    assert all(after[path]["started_at"] == trial["started_at"] for path, trial in ran.items())
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    # No build, or always another way to fail, which may hide this one: never named, and no pass.
    (file,) = stage.results.glob("bisect-*.json")
    found = json.loads(file.read_text())
    assert {name.split()[2] for name in found["skipped"]} <= {f"{each}," for each in special}


@pytest.mark.slow
def test_the_version_from_which_on_it_fails_is_found_in_the_index(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for version in ("1.0", "1.1", "1.10", "2.0", "2.1"):
        write_wheel(index, "tiny", version, f"WORKS = {version < '2'}\n")
    use_index(monkeypatch, index, tmp_path / "cache")
    monkeypatch.setenv("PIP_QUIET", "1")
    stage.write(train="import tiny\nassert tiny.WORKS")
    done = stage.aorta("bisect", "--versions", "tiny==1.1..2.1", "--", "python", "train.py")
    assert done.ret == 0, text(done)
    done.stdout.fnmatch_lines(
        [
            "*: from tiny==2.0 on it fails more often: *; fresh trials confirm it: * of tiny==1.10 (p = *)",
            "tiny==1.1 *",
        ]
    )
    done = stage.aorta("bisect", "--versions", "tiny==3..4", "--", "python", "train.py")
    assert done.ret == 4
    assert "--versions 'tiny==3..4': the index has 0 versions in this range" in text(done)
