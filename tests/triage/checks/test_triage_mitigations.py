"""Whether a mitigation can have acted, from what the records of the cells say of its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import record

from pytest_aorta.triage.cells import CellTrials, MitigationEffect, effects
from pytest_aorta.triage.facts import CellKey, facts_of, watched_variables
from pytest_aorta.triage.verdicts import Triage, choose_baselines


@dataclass(frozen=True)
class Cell:
    """A cell whose trials are made up.

    ``sets``: variables of its mitigation set; ``sees``: what its processes have else; ``unnamed``: what nothing names;
    ``trials``: changes of the records of single trials.
    """

    mitigations: str
    sets: Mapping[str, str] = field(default_factory=dict)
    sees: Mapping[str, str] = field(default_factory=dict)
    unnamed: Sequence[str] | None = ()
    environment: str = "local"
    requested: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 2


def records(cell: Cell, watched: set[str], ambient: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of the trials of a cell."""
    by = {name: {"count": int(name not in (cell.unnamed or ())), "first": []} for name in watched}
    end = {"variables": {"by": by, "subprocesses": False, **cell.end}} if cell.unnamed is not None else None
    return [
        record(
            cell=f"{cell.environment}-{cell.mitigations}",
            trial_index=index,
            execution_env={"kind": "local", "name": cell.environment, "source_package": "builtin"},
            mitigations_applied=[cell.mitigations],
            request={
                "overlay": dict(cell.sets),
                "ambient": {name: ambient.get(name) for name in sorted(watched)},
                "environment": {"name": cell.environment, **cell.requested},
            },
            env={"process": {"pid": 1}, "env_vars": {**ambient, **cell.sees, **cell.sets}, "end": end},
        )
        for index in range(cell.trials)
    ]


def judged(
    *cells: Cell, ambient: Mapping[str, str] | None = None, baseline: str | None = None
) -> dict[str, MitigationEffect]:
    """The effect of each cell but the baseline, by its label."""
    ambient = ambient or {}
    watched = {name for cell in cells for name in cell.sets}
    found: dict[CellKey, CellTrials] = {}
    for cell in cells:
        for each in records(cell, watched, ambient):
            facts = facts_of(each, "trial_0.json")
            found.setdefault(facts.key, CellTrials(facts.key, facts.environment, facts.mitigations)).add(facts)
    statistics = {key: trials.statistics for key, trials in found.items()}
    baselines = choose_baselines(list(statistics.values()), baseline)
    return {key.cell: effect for key, effect in effects(statistics, baselines.of).items()}


NONE = Cell("none")
TF32 = Cell("tf32_off", {"DISABLE_TF32": "1"}, unnamed=["DISABLE_TF32"])
OMP = Cell("omp_1", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})


THREADS, MADE_UP, SECRET = {"OMP_NUM_THREADS": "1"}, {"MADE_UP": "1"}, {"HF_TOKEN": "<redacted>"}


def test_why_a_mitigation_cannot_act_is_said() -> None:
    unread = judged(NONE, TF32)["local-tf32_off"]
    assert unread.sentences == ("tf32_off: DISABLE_TF32 is named by nothing that is loaded",)
    assert (unread.is_inert, unread.is_second_baseline) == (True, False)
    assert unread.reason == "named by nothing that is loaded"
    same = judged(NONE, Cell("same", THREADS), ambient=THREADS)["local-same"]
    assert (same.is_inert, same.is_second_baseline) == (True, True)
    assert same.reason == "same variables as local-none"
    assert same.sentences == (
        "same: OMP_NUM_THREADS is set to this value already",
        "same: all variables have the values that they have in local-none",
    )


def test_what_is_a_second_baseline_and_nothing_else_is_inert() -> None:
    cases: list[tuple[list[Cell], dict[str, Any], set[str]]] = [
        # torch's agent sets OMP_NUM_THREADS=1 for several ranks; around pytest it is not set.
        ([Cell("none", sees=THREADS), Cell("one", THREADS)], {}, {"local-one"}),
        # Of an explicit baseline with variables, the cell without them differs by them.
        ([OMP, NONE], {"baseline": "omp_1"}, set()),
        ([OMP, NONE], {"baseline": "omp_1", "ambient": OMP.sets}, {"local-none"}),
        # Each environment has its own reference; what is different in another one is the environment.
        (
            [
                *(NONE, OMP),
                Cell("none", environment="venv", sees=OMP.sets),
                Cell("omp_1", OMP.sets, environment="venv", sees=OMP.sets),
            ],
            {},
            {"venv-omp_1"},
        ),
        ([NONE, Cell("none", {"OF_THE_VENV": "1"}, environment="venv", unnamed=["OF_THE_VENV"])], {}, set()),
        # A variable that all cells have is no mitigation's.
        (
            [Cell("none", MADE_UP, unnamed=[*MADE_UP]), Cell("omp_1", {**MADE_UP, **OMP.sets}, unnamed=[*MADE_UP])],
            {},
            set(),
        ),
        # A secret is unknown.
        ([NONE, Cell("token", SECRET)], {"ambient": SECRET}, set()),
        # A crash at the end of every trial, or something else that may have read it, leaves nothing to claim.
        ([NONE, replace(TF32, unnamed=None)], {}, set()),
        *(
            ([NONE, replace(TF32, **changes)], {}, set())
            for changes in (
                {"end": {"subprocesses": True}},
                {"end": {"unsearched": ["libgone.so"]}},
                {"requested": {"launcher": ["numactl", "--cpunodebind=0"]}},
            )
        ),
    ]
    for cells, more, seconds in cases:
        found = judged(*cells, **more)
        assert {name for name, effect in found.items() if effect.is_second_baseline} == seconds
        assert {name for name, effect in found.items() if effect.is_inert or effect.inert} == seconds


def test_a_search_that_was_given_up_and_ambient_values_of_another_place_say_nothing() -> None:
    end = {"variables": {"note": "not searched", "subprocesses": False}}
    facts = watched_variables({"request": {"ambient": {"A": None}}, "env": {"process": {}, "end": end}})
    assert facts.unnamed is None
    entered = {"requested": {"enter": True}, "environment": "image"}
    one = Cell("one", {"MIOPEN_FIND_MODE": "1", "NVIDIA_VISIBLE_DEVICES": "0"}, **entered)  # type: ignore[arg-type]
    trial = records(one, set(one.sets), {"MIOPEN_FIND_MODE": "1"})[0]
    trial["env"]["end"]["variables"]["by"] = {name: {"count": 0, "first": []} for name in one.sets}
    found = watched_variables(trial)
    assert found.ambient == ()
    assert found.unnamed == frozenset({"MIOPEN_FIND_MODE"})  # the engine reads the other one


def test_only_what_all_trials_agree_on_counts() -> None:
    disagree = [*records(TF32, {"DISABLE_TF32"}, {}), *records(TF32, {"DISABLE_TF32"}, {})]
    disagree[0]["env"]["end"]["variables"]["by"]["DISABLE_TF32"]["count"] = 1
    disagree[1]["env"]["end"] = None
    trials = CellTrials(CellKey("probe", "local-tf32_off"), "local", ("tf32_off",))
    for index, each in enumerate(disagree):
        trials.add(facts_of({**each, "trial_index": index}, ""))
    assert trials.statistics.variables.unnamed == frozenset()


NAMES = st.sampled_from(["A", "B", "C"])
VALUES = st.dictionaries(NAMES, st.sampled_from(["1", "2", "<redacted>"]))


@given(ambient=VALUES, bundles=st.lists(VALUES, min_size=1, max_size=4), unnamed=st.frozensets(NAMES))
def test_a_second_baseline_is_what_resolves_to_the_baseline(
    ambient: dict[str, str], bundles: list[dict[str, str]], unnamed: frozenset[str]
) -> None:
    cells = [NONE, *(Cell(f"m{number}", sets, unnamed=sorted(unnamed)) for number, sets in enumerate(bundles))]
    watched = {name for sets in bundles for name in sets}
    base = {name: ambient.get(name) for name in watched}
    for label, effect in judged(*cells, ambient=ambient).items():
        if label == "local-none":
            continue
        sets = bundles[int(label[-1])]
        resolved = {name: sets.get(name, ambient.get(name)) for name in watched}
        known = "<redacted>" not in {*resolved.values(), *base.values()}
        assert effect.is_second_baseline == (bool(watched) and known and resolved == base)
        assert {*effect.active, *(variable.name for variable in effect.inert)} == set(sets)
        assert {variable.name for variable in effect.inert} == {
            name for name, value in sets.items() if name in unnamed or (value == base[name] and value != "<redacted>")
        }


@pytest.mark.parametrize(
    ("sets", "unnamed", "kind"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, ["NCCL_P2P_DISABLE"], "not read"),
        ({"NCCL_P2P_DISABLE": "1"}, [], "no cure"),
        ({"NCCL_P2P_DISABLE": "1"}, None, "no cure"),  # it is not known
        # One of two is read; names that code may have put together.
        ({"NCCL_P2P_DISABLE": "1", "MIOPEN_FIND_MODE": "1"}, ["NCCL_P2P_DISABLE"], "no cure"),
        *(({name: "1"}, [name], "no cure") for name in ("OMP_PROC_BIND", "PYTHONHASHSEED", "WANDB_MODE")),
    ],
)
def test_what_nothing_reads_is_not_called_no_cure(sets: dict[str, str], unnamed: list[str] | None, kind: str) -> None:
    triage = Triage()
    for number, cell in enumerate((NONE, Cell("it", sets, unnamed=unnamed, trials=40))):
        for each in records(replace(cell, trials=40), {*sets}, {}):
            passed = each["trial_index"] % 2 == 0
            each |= {
                "exit_status": "ok" if passed else "workload_failed",
                "result": {**each["result"], "passed": passed},
                "started_at": f"2026-01-01T00:{each['trial_index']:02}:{number}0.000+00:00",
            }
            triage.add(facts_of(each, f"{number}/trial_{each['trial_index']}.json"))
    row = triage.table().rows[1]
    assert row.verdict.kind == kind
    assert (row.effect is not None and row.effect.is_inert) == (kind == "not read" or unnamed == ["WANDB_MODE"])
    if kind == "not read":
        assert row.verdict.reason == "it: NCCL_P2P_DISABLE is named by nothing that is loaded"
