"""``pytest-aorta explain``: which differences between two sides make it fail."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_distributions import use_index, write_wheel
from support.stage import Stage, text
from support.triage_facts import trials

from pytest_aorta.probe.environment_facts import Fact
from pytest_aorta.search.explain import (
    Change,
    Explain,
    ExplainRequest,
    Setting,
    combined,
    explain_request,
    sorted_out,
)
from pytest_aorta.triage.environments import Difference

(FACTS,) = trials("none", ".")


def request(*names: str, rest: tuple[str, ...] = ()) -> ExplainRequest:
    changes = [Change(name, f"{name} 1 -> 2", Setting({name: "1"}), Setting({name: "2"})) for name in names]
    return ExplainRequest(tuple(changes), rest)


def searched(asked: ExplainRequest, fails: Callable[[set[str]], float], seed: int = 1) -> Explain:
    """The search, at its end; ``fails``: the failure rate of a trial with these differences as on the bad side."""
    chance = random.Random(seed)
    search = Explain(asked, 200, 2000)
    steps = search.steps()
    wanted = next(steps)
    while True:
        ends = ["failed" if chance.random() < fails({*(one.arm or ())}) else "ok" for one in wanted]
        try:
            wanted = steps.send([replace(FACTS, outcome=end) for end in ends])  # type: ignore[arg-type]
        except StopIteration:
            return search


FORTY = tuple(f"V{number}" for number in range(40))


@pytest.mark.parametrize("needed", [{"V7"}, {"V7", "V23"}], ids=["one", "two together"])
def test_the_differences_that_turn_it_on_are_found(needed: set[str]) -> None:
    search = searched(request(*FORTY), lambda bad: 0.4 * (needed <= bad))
    assert {*(search.result.left or ())} == needed
    is_found, sentence = search.conclusion()
    assert is_found
    texts = " and ".join(f"{name} 1 -> 2" for name in FORTY if name in needed)
    does = "turns it on" if len(needed) == 1 else "turn it on, together"
    assert sentence.startswith(f"{texts} {does}: ")
    (row,) = [row for row in search.report().rows if row.is_found]
    assert row.cells[0] == " ".join(name for name in FORTY if name in needed)


def test_of_two_that_suffice_one_is_found() -> None:
    search = searched(request(*FORTY), lambda bad: 0.4 * bool(bad & {"V7", "V23"}))
    assert search.result.left in (("V7",), ("V23",))


def test_what_does_not_act_is_not_named() -> None:
    never = searched(request(*FORTY, rest=("kernel 5 -> 6",)), lambda bad: 0.0)
    assert never.conclusion() == (
        False,
        "not shown that the differences make it fail here: 0 of 200 as on the good side, 0 of 200 as on the bad "
        "side; 1 difference cannot be made here",
    )
    assert "  kernel 5 -> 6" in never.report().notes
    always = searched(request(*FORTY), lambda bad: 0.5)
    assert always.conclusion()[1].startswith("the differences do not make it fail here: ")


def different(section: str, name: str, good: Any, bad: Any) -> Difference:
    return Difference(Fact(0, name, section), ((good, 1),), ((bad, 1),))


def test_what_can_be_changed_here_is_told_from_what_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "1")
    changes, rest = sorted_out(
        [
            different("env_vars", "OMP_NUM_THREADS", None, "2"),
            different("env_vars", "LD_LIBRARY_PATH", "/nowhere/lib:/nowhere/more", None),
            different("env_vars", "HF_HOME", "<redacted>", "x"),
            different("other_variables 1234", "OTHER", "sha256:12", None),
            different("process", "CPUs allowed", "1", str(10_000)),
            different("process", "limit nofile", "64", "128"),
            different("options", "option lr", "0.1", "0.2"),
            different("host", "kernel", "5.1", "6.2"),
            different("git", "git commit", "abc", "def"),
            Difference(Fact(0, "A", "env_vars"), (("1", 2), ("2", 1)), (("3", 1),)),
        ]
    )
    assert [(each.name, each.good, each.bad) for each in changes] == [
        ("OMP_NUM_THREADS", Setting({"OMP_NUM_THREADS": None}), Setting({"OMP_NUM_THREADS": "2"})),
        (
            "limit nofile",
            Setting(launcher=("prlimit", "--nofile=64:")),
            Setting(launcher=("prlimit", "--nofile=128:")),
        ),
        ("option lr", Setting(options={"lr": 0.1}), Setting(options={"lr": 0.2})),
    ]
    cores = len(os.sched_getaffinity(0))
    assert rest == [
        "LD_LIBRARY_PATH /nowhere/lib:/nowhere/more -> none (/nowhere/lib is not on this machine)",
        "HF_HOME <redacted> -> x (a secret)",
        "OTHER (value not recorded) -> none (value not recorded; pytest-aorta env --json --all records it)",
        f"CPUs allowed 1 -> 10000 ({cores} are allowed here)",
        "kernel 5.1 -> 6.2",
        "git commit abc -> def (pytest-aorta bisect --commits looks through commits)",
        "A 1 (2 trials), 2 (1 trial) -> 3 (one side has several values)",
    ]
    variables, words, packages, options = combined(changes, {"limit nofile", "option lr"})
    assert (variables, words) == ({}, ("env", "-u", "OMP_NUM_THREADS", "prlimit", "--nofile=128:"))
    assert (packages, options) == ([], {"lr": 0.2})
    asked = ExplainRequest(tuple(changes), tuple(rest), "NaN")
    assert explain_request(asked.to_json()) == asked


_TOGETHER = """
    import os
    both = os.environ.get("A") == "2" and os.environ.get("B") == "3"
    raise SystemExit("lost update" if both and int(os.environ["AORTA_TRIAL"]) % 10 != 3 else 0)
"""


def snapshot(stage: Stage, name: str, **variables: str) -> Path:
    done = stage.aorta("env", "--json", "--all", env=variables)
    file = stage.path / name
    file.write_text(done.stdout.str())
    return file


@pytest.mark.slow
def test_of_46_variables_the_two_that_matter_together_are_found(stage: Stage) -> None:
    stage.write(train=_TOGETHER)
    sides = [
        snapshot(stage, f"{side}.json", A=a, B=b, **{f"V_{number}": f"{side}{number}" for number in range(44)})
        for side, a, b in (("good", "1", "1"), ("bad", "2", "3"))
    ]
    done = stage.aorta(
        "explain", *map(str, sides), "--aorta-slots", "2", "--aorta-report", "r.html", "--", sys.executable, "train.py"
    )
    assert done.ret == 0, text(done)
    done.stdout.fnmatch_lines(
        [
            "46 differences; 46 can be made here",
            "  A 1 -> 2",
            "  and 26 more",
            "command-train: A 1 -> 2 and B 1 -> 3 turn it on, together: * failed with it, 0 of * as on the good side",
            "as on the bad side * failed * with all * p * level",
            "A B * of * turns it on",
        ]
    )
    found = json.loads((stage.results / "explain-command-train.json").read_text())
    assert (found["search"], found["left"]) == ("explain", ["A", "B"])
    assert "| A B |" in (stage.results / "explain-command-train.md").read_text()
    page = (stage.path / "r.html").read_text()
    assert "explain command-train" in page
    assert "turn it on, together" in page


@pytest.mark.slow
def test_runs_of_one_command_are_explained_without_naming_it(stage: Stage) -> None:
    stage.write(train="import os\nraise SystemExit('bad' if os.environ.get('OMP_NUM_THREADS') == '2' else 0)")
    command = f"{sys.executable} train.py"
    for folder, value in (("good", "1"), ("bad", "2")):
        stage.run(
            *(
                "--aorta-command",
                command,
                "--aorta-results-dir",
                folder,
                "--aorta-extra-env",
                f"OMP_NUM_THREADS={value}",
            )
        )
    done = stage.aorta("explain", "good", "bad")
    assert done.ret == 0, text(done)
    done.stdout.fnmatch_lines(["command-train: OMP_NUM_THREADS 1 -> 2 turns it on: *"])
    done = stage.aorta("explain", "bad", "good")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*the differences do not make it fail here: * wrong way round?"])


@pytest.mark.slow
def test_a_package_of_another_version_is_explained_over_those_that_are_here(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(index, "kernels", version, f"version = {version!r}\n")
    use_index(monkeypatch, index, tmp_path / "cache")
    stage.write(train="import kernels, pydantic\nraise SystemExit('NaN' if kernels.version == '2.0' else 0)")
    taken = json.loads(snapshot(stage, "here.json").read_text())
    for side, version in (("good", "1.0"), ("bad", "2.0")):
        listed = {"digest": f"sha256:{side}", "versions": {**taken["installed"]["versions"], "kernels": version}}
        packages = {**taken["packages"], "digest": listed["digest"]}
        (stage.path / f"{side}.json").write_text(json.dumps({**taken, "packages": packages, "installed": listed}))
    done = stage.aorta("explain", "good.json", "bad.json", "--", "python", "train.py")
    assert done.ret == 0, text(done)
    done.stdout.fnmatch_lines(["*: kernels 1.0 -> 2.0 turns it on: *"])


def test_what_cannot_be_is_refused(stage: Stage) -> None:
    one = str(snapshot(stage, "one.json", A="1"))
    two = str(snapshot(stage, "two.json", A="2"))
    for words, problem in (
        (["explain", one, one, "--", "true"], "no difference between them can be made here; it does not look at seeds"),
        (["explain", one, "nothing.json", "--", "true"], "nothing.json: No such file or directory"),
        (["explain", one, two], "names no workload; expected a command after --, or --aorta-workload NAME"),
        (["bisect", "--values", "A=1,2", "--aorta-trials", "3", "--", "true"], "use --max-trials N"),
        (["explain", one], "Missing argument 'BAD'"),
        (["bisect", "--values", "A=1,2", "--confidence", "2", "--", "true"], "2.0 is not in the range"),
        (["amplify"], "no trials: of what? --aorta-workload NAME"),
    ):
        done = stage.aorta(*words)
        assert done.ret == 4, text(done)
        assert problem in text(done)
        assert "0 differences" not in text(done)
    done = stage.aorta("explain", one, two, "--aorta-mitigations=A=1", "--aorta-mitigations=A=2", "--", "true")
    assert "explain: expected one environment and one mitigation set, under which all its trials run" in text(done)
