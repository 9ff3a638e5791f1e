"""Which condition makes a rare fault frequent: by simulated trials, and by real ones."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.stage import Stage, text
from support.triage_facts import CRASH, trials

from pytest_aorta.cli.search import conditions
from pytest_aorta.runtime.resources.devices import are_named_only, find_devices
from pytest_aorta.search.amplify import Amplified, Amplify
from pytest_aorta.triage.facts import TrialFacts

(FACTS,) = trials("none", ".")


def run(search: Amplify, ends: Callable[[int], TrialFacts]) -> tuple[Amplified, int]:
    """The result, and how many trials it took; ``ends``: how a trial with a condition ends."""
    steps, number = search.steps(), 0
    wanted = next(steps, None)
    while wanted is not None:
        number += len(wanted)
        try:
            wanted = steps.send([replace(ends(each.arm), index=each.index) for each in wanted])
        except StopIteration:
            wanted = None
    return search.result, number


def by_rates(rates: Sequence[float], seed: int) -> Callable[[int], TrialFacts]:
    generator = np.random.default_rng(seed)
    return lambda arm: replace(FACTS, outcome="failed" if generator.random() < rates[arm] else "ok")


def named(number: int) -> list[str]:
    return ["no condition", *(f"c{each}" for each in range(1, number))]


def test_of_twelve_conditions_the_one_that_acts_is_found_with_fewer_trials_than_in_equal_shares() -> None:
    rates = [0.01] * 7 + [0.3] + [0.01] * 5
    searches = [run(Amplify(named(13), 2000), by_rates(rates, seed)) for seed in range(12)]
    assert sum(result.found == 7 for result, _ in searches) >= 11
    # In equal shares, each needs the trials with which a condition of 30 % differs from 1 % in a test for 12.
    assert np.mean([number for _, number in searches]) < 13 * 25


def test_no_trial_runs_beyond_the_limit_also_where_pairs_are_left() -> None:
    for most in range(5, 30):
        assert run(Amplify(named(3), most), by_rates([0.0, 0.6, 0.6], most))[1] <= most


def test_a_condition_that_does_nothing_is_hardly_ever_named() -> None:
    searches = [run(Amplify(named(6), 300), by_rates([0.1] * 6, seed))[0] for seed in range(15)]
    assert sum(result.found is not None for result in searches) <= 2
    assert Amplify(named(3), 0).conclusion()[1] == "nothing to amplify: no trial came to its main work"


def test_a_fault_that_is_frequent_by_itself_ends_the_search() -> None:
    search = Amplify(named(3), 2000)
    result, number = run(search, by_rates([0.95, 1.0, 1.0], 0))
    assert (result.found, number < 100) == (None, True)
    seen = f"{result.failures[0]} of {result.trials[0]}"
    assert search.conclusion() == (False, f"nothing to amplify: {seen} failed with no condition")


def test_a_search_that_is_interrupted_does_not_blame_its_limit_of_trials() -> None:
    search = Amplify(named(3), 6)
    steps = search.steps()
    (wanted,) = next(steps)
    steps.send([replace(FACTS, index=wanted.index)])  # and one is under way
    said = "no condition is shown to make it more frequent in"
    report = search.report().so_far()
    assert report.sentence.startswith(f"interrupted; --aorta-resume goes on. So far: {said} 1 trial; ")
    assert report.sentence in (report.lines()[0], *report.markdown("amplify").splitlines())
    search = Amplify(named(3), 6)
    run(search, by_rates([0.0] * 3, 0))
    assert search.report().sentence.startswith(f"{said} 6 trials (--max-trials); ")


def test_what_is_said_tells_whether_it_is_the_same_fault() -> None:
    def ends(arm: int, *, same: bool = True) -> TrialFacts:
        fails = next(turn) % 10 == 0 if arm == 0 else arm == 2
        way = CRASH if same or arm else replace(CRASH, message="another")
        return replace(FACTS, outcome="failed" if fails else "ok", signature=way if fails else None)

    turn = iter(range(10_000))
    search = Amplify(named(3), 2000)
    run(search, ends)
    success, sentence = search.conclusion()
    assert success
    assert sentence.startswith("with c2 ")
    assert sentence.endswith(f"; in the same way: {CRASH.text}")
    turn = iter(range(10_000))
    other = Amplify(named(3), 2000)
    run(other, lambda arm: ends(arm, same=False))
    assert "but mostly in another way" in other.conclusion()[1]
    only = Amplify(named(3), 2000, signature="another")
    turn = iter(range(10_000))
    run(only, lambda arm: ends(arm, same=False))
    assert not only.conclusion()[0]


def test_of_a_condition_that_did_not_run_the_reason_is_told() -> None:
    search = Amplify(named(2), 12)
    lost = replace(FACTS, outcome="infrastructure", signature=CRASH)
    run(search, lambda arm: lost if arm else FACTS)
    assert search.report().rows[1].cells == ("c1", "did not run", CRASH.text)


_BY_CORES = """
    import os
    pinned, number = len(os.sched_getaffinity(0)) == 1, int(os.environ["AORTA_TRIAL"])
    raise SystemExit("lost update" if (number % 5 != 1 if pinned else number % 50 == 10) else 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is no condition where there is one")
def test_a_launcher_prefix_that_makes_a_command_fail_is_found(stage: Stage) -> None:
    stage.write(train=_BY_CORES)
    core = min(os.sched_getaffinity(0))
    done = stage.aorta(
        *("amplify", "--condition", "OMP_NUM_THREADS=1", "--condition", f"prefix:taskset -c {core}"),
        *("--aorta-slots", "2", "--", sys.executable, "train.py"),
    )
    assert done.ret == 0, text(done)
    done.stdout.fnmatch_lines(
        [
            f"*: with prefix:taskset -c {core} it fails more often: * of * against * of * without it, in fresh trials "
            "(p = *); *",
            "condition * failed * most frequent way",
            f"prefix:taskset -c {core} * of * exit code 1: lost update",
            "to show a cure takes about * trials of each cell with it, * without",
            f"next: mitigations under it: --aorta-mitigations 'prefix:taskset -c {core}' * --aorta-baseline *",
        ]
    )
    (file,) = stage.results.glob("amplify-*.json")
    assert json.loads(file.read_text())["found"] == 2
    assert "second baseline" not in done.stdout.str()


_LOOKS_BESIDE = """
    import os, pathlib, time
    def others():
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    yield (entry / "cmdline").read_bytes()
                except OSError:
                    pass
    for _ in range(5):
        if any(each.startswith(b"sh") and b"the-load" in each for each in others()):  # pytest has the word, too
            raise SystemExit("it is there")
        time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_program_runs_beside_the_trials_of_a_condition_and_of_no_other_one(stage: Stage) -> None:
    word = f"load-{os.getpid()}"  # others may run this very test
    stage.write(train=_LOOKS_BESIDE.replace("the-load", word))
    load = f'beside:sh -c "sleep 1000 & sleep 1000; : {word}"'
    done = stage.aorta("amplify", "--condition", load, "--", sys.executable, "train.py")
    assert done.ret == 0, text(done)
    done.stdout.fnmatch_lines(["*it fails more often: * against 0 of * without it, in fresh trials (p = *); *"])
    assert not [process for process in stage.processes() if "sleep" in " ".join(process.cmdline())]


def test_a_program_beside_a_trial_ends_with_pytest_even_if_that_is_killed(stage: Stage) -> None:
    load = 'beside:sh -c "sleep 1000 & setsid sleep 1000; : the-load"'
    process = stage.start("--aorta-command", "sleep 1000", "--aorta-mitigations", load)
    stage.wait_until(lambda: sum("1000" in each.cmdline() for each in stage.processes()) >= 3)
    os.kill(process.pid, signal.SIGKILL)
    stage.finish(process)
    stage.wait_until_alone()


def test_a_program_beside_a_trial_that_ends_by_itself_is_said(stage: Stage) -> None:
    done = stage.run("--aorta-command", "sleep 0.3", "--aorta-mitigations", "beside:false")
    done.assert_outcomes(passed=1, warnings=1)
    assert "the program beside the trial, false, ended before it, with exit code 1" in text(done)
    done = stage.run("--aorta-command", "true", "--aorta-mitigations", "beside:true", "--aorta-slots", "2")
    assert "mitigation beside:true: trials of other slots would feel it, too; use one slot" in text(done)
    done = stage.run("--aorta-command", "true", "--aorta-mitigations", "beside:no-such-program")
    assert "the program beside the trial, no-such-program, is not on PATH" in text(done)


@pytest.mark.slow
def test_every_condition_of_ours_starts_a_command(stage: Stage) -> None:
    found = conditions()
    assert {"one core", "low priority", "freed memory overwritten"} <= set(found)
    assert not any("NCCL" in each for each in found.values()) or not are_named_only(find_devices())
    words = [word for name in found.values() for word in ("--aorta-mitigations", name)]
    done = stage.run("--aorta-command", "true", "--aorta-mitigations", "none", *words)
    done.assert_outcomes(passed=len(found) + 1)


def test_what_cannot_be_is_refused(stage: Stage) -> None:
    done = stage.aorta("amplify", "--condition", "nothing", "--", "true")
    assert done.ret == 4
    assert "unknown mitigation 'nothing'" in text(done)
    done = stage.aorta("amplify", "--condition", "prefix:", "--", "true")
    assert done.ret == 4
    assert "mitigation 'prefix:': it names no program, as in prefix:nice -n 19" in text(done)
