"""The units of a matrix that commands are run on: its trials, its cells, or all of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pytest_aorta.plan import Plan
from pytest_aorta.trials.conversion import to_plain
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.values import Json


def unit_of(spec: TrialSpec) -> str:
    """``CELL/INDEX``."""
    return f"{spec.cell}/{spec.trial_index}"


class MatrixUnits:
    """The units of one action with a workload, as a follower sees them.

    Args:
        action: with the workload; its results lie in the folder of its name.
        plan: its trials.
        each: what the follower is run on: ``trial``, ``cell`` or ``matrix``.
    """

    def __init__(self, action: Action, plan: Plan, each: str) -> None:
        self._action = action
        self._plan = plan
        self._each = each

    @cached_property
    def _first(self) -> dict[str, TrialSpec]:
        """Unit to its trial, or the first of its trials."""
        found: dict[str, TrialSpec] = {}
        for spec in self._plan.trials:
            unit = {"trial": unit_of(spec), "cell": spec.cell}.get(self._each, "")
            found.setdefault(unit, spec)
        return found

    @property
    def names(self) -> Sequence[str]:
        """All units, in the order of the plan."""
        return list(self._first)

    def path_of(self, unit: str) -> str:
        """The artifacts of a trial, the folder of a cell, or the results directory, relative to the workspace."""
        if not unit:
            return self._action.name
        paths = self._plan.paths(self._first[unit])
        return str(self._action.name / (paths.folder if self._each == "trial" else paths.file.parent))

    def value_of(self, unit: str) -> Json:
        """What the recipe says of a unit."""
        spec = self._first[unit]
        value: dict[str, Json] = {"workload": spec.workload.name, "config": to_plain(dict(spec.overrides))}
        if unit:
            value |= {"environment": spec.environment.name, "mitigations": list(spec.mitigations)}
        if self._each == "trial":
            value["trial"] = spec.trial_index
        return value
