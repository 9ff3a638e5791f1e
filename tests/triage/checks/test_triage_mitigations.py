"""Whether a mitigation can have acted, from what the records of the cells say of its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.records import record

from pytest_aorta.triage.cells import CellTrials, MitigationEffect, effects
from pytest_aorta.triage.facts import CellKey, facts_of, watched_variables
from pytest_aorta.triage.verdicts import choose_baselines


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


def test_a_variable_that_nothing_names_is_inert() -> None:
    effect = judged(NONE, TF32)["local-tf32_off"]
    assert effect.sentences == ("tf32_off: DISABLE_TF32 is named by nothing that is loaded",)
    assert (effect.is_inert, effect.is_second_baseline) == (True, False)
    assert effect.reason == "named by nothing that is loaded"


def test_a_value_that_was_there_already_makes_a_second_baseline() -> None:
    same = Cell("same", {"OMP_NUM_THREADS": "2"})
    effect = judged(NONE, same, ambient={"OMP_NUM_THREADS": "2"})["local-same"]
    assert effect.is_second_baseline
    assert effect.is_inert
    assert effect.reason == "same variables as local-none"
    assert effect.sentences == (
        "same: OMP_NUM_THREADS is set to this value already",
        "same: all variables have the values that they have in local-none",
    )


def test_a_value_that_the_launcher_gives_the_baseline_counts_as_there_already() -> None:
    """torch's agent sets OMP_NUM_THREADS=1 for several ranks; around pytest it is not set."""
    effect = judged(Cell("none", sees={"OMP_NUM_THREADS": "1"}), Cell("one", {"OMP_NUM_THREADS": "1"}))["local-one"]
    assert effect.is_second_baseline


def test_variables_of_the_environment_and_extra_ones_are_not_the_mitigations() -> None:
    extra = {"MADE_UP": "1"}
    none = Cell("none", extra, unnamed=["MADE_UP"])
    omp = Cell("omp_1", {**extra, **OMP.sets}, unnamed=["MADE_UP"])
    assert judged(none, omp)["local-omp_1"].inert == ()


def test_the_baselines_own_overlay_counts() -> None:
    """Of an explicit baseline with variables, the cell without them differs by them."""
    effect = judged(OMP, NONE, baseline="omp_1")["local-none"]
    assert (effect.is_second_baseline, effect.inert, effect.active) == (False, (), ())
    assert judged(OMP, NONE, ambient=OMP.sets, baseline="omp_1")["local-none"].is_second_baseline


def test_the_baseline_in_another_environment_is_no_second_one() -> None:
    """What is different there is the environment."""
    effect = judged(NONE, Cell("none", {"OF_THE_VENV": "1"}, environment="venv", unnamed=["OF_THE_VENV"]))["venv-none"]
    assert effect == MitigationEffect(("none",))


def test_each_environment_has_its_own_reference() -> None:
    there = {"environment": "venv", "sees": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}}
    found = judged(NONE, OMP, Cell("none", **there), Cell("omp_1", OMP.sets, **there))  # type: ignore[arg-type]
    assert found["local-omp_1"].inert == ()
    assert found["venv-omp_1"].is_second_baseline


def test_a_crash_at_the_end_of_every_trial_leaves_nothing_to_claim() -> None:
    assert not judged(NONE, Cell("tf32_off", TF32.sets, unnamed=None))["local-tf32_off"].is_inert


def test_nothing_is_claimed_where_something_else_may_have_read_it() -> None:
    for changes in (
        {"end": {"subprocesses": True}},
        {"end": {"unsearched": ["libgone.so"]}},
        {"requested": {"launcher": ["numactl", "--cpunodebind=0"]}},
    ):
        assert not judged(NONE, Cell("tf32_off", TF32.sets, unnamed=["DISABLE_TF32"], **changes))[
            "local-tf32_off"
        ].is_inert


def test_a_search_that_was_given_up_claims_nothing() -> None:
    end = {"variables": {"note": "not searched", "subprocesses": False}}
    facts = watched_variables({"request": {"ambient": {"A": None}}, "env": {"process": {}, "end": end}})
    assert facts.unnamed is None


def test_in_a_container_ambient_values_are_those_of_another_place() -> None:
    entered = {"requested": {"enter": True}, "environment": "image"}
    one = Cell("one", {"OMP_NUM_THREADS": "1", "NVIDIA_VISIBLE_DEVICES": "0"}, **entered)  # type: ignore[arg-type]
    trial = records(one, set(one.sets), {"OMP_NUM_THREADS": "1"})[0]
    trial["env"]["end"]["variables"]["by"] = {name: {"count": 0, "first": []} for name in one.sets}
    found = watched_variables(trial)
    assert found.ambient == ()
    assert found.unnamed == frozenset({"OMP_NUM_THREADS"})  # the engine reads the other one


def test_secrets_compare_as_unknown() -> None:
    secret = {"HF_TOKEN": "<redacted>"}
    effect = judged(NONE, Cell("token", secret), ambient=secret)["local-token"]
    assert effect == MitigationEffect(("token",), active=("HF_TOKEN",))


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
