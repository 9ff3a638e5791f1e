"""Which nodes stand out of a sweep, beside references and simulated sweeps."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import fisher_exact, t

from pytest_aorta.triage.facts import CellKey, Outcome, Place, TrialFacts, steady_steps
from pytest_aorta.triage.where import NODE_LEVEL, Node, compare_nodes, node_sentences, trials_needed


def trial(node: str, *, outcome: Outcome = "ok", ms: float | None = None, cell: str = "none") -> TrialFacts:
    steps = None if ms is None else steady_steps([ms] * 20)
    return TrialFacts(CellKey("work", cell), "local", (), "", 0, "", outcome, place=Place(node), steps=steps)


def by_name(trials: list[TrialFacts], margin: float = 0.05) -> Mapping[str, Node]:
    return {node.name: node for node in compare_nodes(trials, margin)}


def test_failures_of_one_cell_are_those_of_fishers_test_for_all_nodes_and_questions() -> None:
    """A trial without a result counts as one that did not pass; what was interrupted says nothing."""
    failed: dict[str, list[Outcome]] = {
        "n0": ["ok"] * 6,
        "n1": ["failed", "infrastructure", "did not run", "timeout", "ok", "ok", "interrupted"],
        "n2": ["ok", "ok", "ok", "ok", "ok", "failed"],
    }
    nodes = by_name([trial(name, outcome=each) for name, outcomes in failed.items() for each in outcomes])
    for name, bad in {"n0": 0, "n1": 4, "n2": 1}.items():
        p = fisher_exact(np.array([[bad, 6 - bad], [5 - bad, 7 + bad]]), alternative="greater").pvalue
        assert (nodes[name].bad, nodes[name].trials) == (bad, 6)
        assert nodes[name].p_bad == pytest.approx(min(1.0, 6 * p))


def test_step_times_are_those_of_least_squares_with_cells_as_a_factor() -> None:
    noise = random.Random(1)
    rows = [
        (node, cell, 100 * (3 if cell == "fix" else 1) * (1.3 if node == "n2" else 1) * noise.lognormvariate(0, 0.05))
        for node in ("n0", "n1", "n2")
        for cell in ("none", "fix")
        for _ in range(1 if node == "n2" else 4)
    ]
    node = by_name([trial(name, ms=ms, cell=cell) for name, cell, ms in rows])["n2"]
    design = np.array([[name == "n2", cell == "none", cell == "fix"] for name, cell, _ in rows], dtype=float)
    logs = np.log([ms for *_, ms in rows])
    found, squares, *_ = np.linalg.lstsq(design, logs)
    freedom = len(rows) - 3
    error = float(np.sqrt(squares[0] / freedom * np.linalg.inv(design.T @ design)[0, 0]))
    assert node.ratio == pytest.approx(float(np.exp(found[0])))
    assert node.p_slow == pytest.approx(6 * float(t.sf((found[0] - np.log(1.05)) / error, freedom)))


def sweep(nodes: int, trials: int, seed: int, bad: Mapping[int, float], slow: Mapping[int, float]) -> list[TrialFacts]:
    noise = random.Random(seed)
    return [
        trial(
            f"n{node}",
            outcome="failed" if noise.random() < bad.get(node, 0.1) else "ok",
            ms=100 * slow.get(node, 1) * noise.lognormvariate(0, 0.02),
            cell=cell,
        )
        for node in range(nodes)
        for _ in range(trials)
        for cell in ("none", "fix")
    ]


def test_of_sound_nodes_hardly_a_sweep_names_any() -> None:
    named = [any(node.reasons for node in compare_nodes(sweep(12, 3, seed, {}, {}))) for seed in range(200)]
    assert sum(named) <= 6  # of 200 with a chance of 1 %, more than 6 come with a chance of 0.4 %


def test_bad_and_slow_nodes_are_named_beside_each_other() -> None:
    nodes = compare_nodes(sweep(16, 5, 0, {3: 1, 9: 1}, {5: 1.25, 11: 1.02}))
    assert [node.name for node in nodes if node.reasons] == ["n3", "n5", "n9"]
    *_, drain = node_sentences(nodes)
    assert drain == "to drain: n3,n5,n9"
    assert compare_nodes([trial("n0"), trial("n0", outcome="failed")]) == []  # on one node they say nothing


def test_one_trial_on_each_node_names_a_slow_one_and_says_how_many_show_a_failing_one() -> None:
    noise = random.Random(2)
    one_each = [trial(f"n{node}", ms=(150 if node == 7 else 100) * noise.lognormvariate(0, 0.02)) for node in range(40)]
    [sentence, _] = node_sentences(compare_nodes(one_each))
    assert re.fullmatch(r"n7: \d+% slower in its only trial \(p < 0.0001\)", sentence)
    for trials in (1, 2, 3):
        outcomes = [trial(f"n{node}", outcome="ok" if node else "failed") for node in range(40) for _ in range(trials)]
        assert (by_name(outcomes)["n0"].p_bad < NODE_LEVEL) == (trials >= trials_needed(40))
