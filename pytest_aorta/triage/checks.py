"""What could make a verdict wrong: variables that nothing reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.settings import OPTION
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.facts import CellKey, WatchedVariables

Reason = Literal["same value", "not named"]

_TEXTS: dict[Reason, str] = {
    "same value": "has this value without it as well",
    "not named": "is named by no loaded library or imported source",
}


@dataclass(frozen=True)
class InertVariable:
    name: str
    reason: Reason

    @property
    def text(self) -> str:
        """``DISABLE_TF32 is named by no loaded library or imported source``."""
        return f"{self.name} {_TEXTS[self.reason]}"


@dataclass(frozen=True)
class MitigationEffect:
    """Whether the variables of a cell's mitigation set can have done anything.

    Attributes:
        inert: variables that probably did nothing, in alphabetical order.
        active: the others that the set changes, in the same order.
        same_as: another cell of the same workload and environment with the same values of all watched variables; the
            baseline, if it is one of them.
        is_second_baseline: whether ``same_as`` is the baseline that the cell is compared with.
    """

    mitigations: tuple[str, ...]
    inert: tuple[InertVariable, ...] = ()
    active: tuple[str, ...] = ()
    same_as: CellKey | None = None
    is_second_baseline: bool = False

    @property
    def is_inert(self) -> bool:
        """Whether none of its variables seems to do anything."""
        return self.is_second_baseline or (bool(self.inert) and not self.active)

    @property
    def reason(self) -> str:
        """Of ``inert? (reason)``, in a few words; empty where it is not ``is_inert``."""
        if self.is_second_baseline and self.same_as is not None:
            return f"same variables as {self.same_as.cell}"
        match sorted({variable.reason for variable in self.inert}) if self.is_inert else None:
            case None:
                return ""
            case ["same value"]:
                return "set to this value already"
            case ["not named"]:
                return "named by nothing that is loaded"
        return "set already, or named by nothing that is loaded"

    @property
    def sentences(self) -> tuple[str, ...]:
        """One per inert variable, and one on an equal cell: ``tf32_off: DISABLE_TF32 is named by no ...``."""
        label = ",".join(self.mitigations)
        found = [f"{label}: {variable.text}" for variable in self.inert]
        if self.same_as is not None:
            found.append(f"{label}: all variables have the values that they have in {self.same_as.cell}")
        return tuple(found)


def effects(
    cells: Mapping[CellKey, CellStatistics], baselines: Mapping[CellKey, CellKey]
) -> dict[CellKey, MitigationEffect]:
    """The effect of each cell that is compared with a baseline.

    A variable is the mitigation set's if the cell sets it, and the baseline's set in the same environment does not set
    it to the same value: variables of the environment and extra ones are in both. Only what all trials of a cell agree
    on is said, and nothing of values that are secret or were not seen.

    - ``same value``: its trials had the value that those of the baseline's set had; where these are not known, the one
      that was set around pytest.
    - ``not named``: see ``probe.loaded``.
    """
    alike: dict[tuple[object, str], list[CellStatistics]] = {}
    for cell in cells.values():
        alike.setdefault((cell.key.group(), cell.environment), []).append(cell)
    return {
        key: _effect(cells[key], cells[base], alike[key.group(), cells[key].environment])
        for key, base in baselines.items()
    }


def _effect(cell: CellStatistics, base: CellStatistics, here: Sequence[CellStatistics]) -> MitigationEffect:
    reference = next((other for other in here if other.mitigations == base.mitigations), None)
    if reference is None or reference is cell:
        return MitigationEffect(cell.mitigations)
    before = dict(reference.variables.overlay)
    changed = [(name, value) for name, value in cell.variables.overlay if before.get(name) != value]
    reasons = {name: _why_inert(cell.variables, name, value, reference.variables) for name, value in changed}
    equal = next((other for other in [reference, *here] if other is not cell and _are_equal(other, cell)), None)
    return MitigationEffect(
        cell.mitigations,
        inert=tuple(InertVariable(name, reason) for name, reason in reasons.items() if reason is not None),
        active=tuple(name for name, reason in reasons.items() if reason is None),
        same_as=None if equal is None else equal.key,
        is_second_baseline=equal is base,
    )


def _why_inert(own: WatchedVariables, name: str, value: str, before: WatchedVariables) -> Reason | None:
    value = dict(own.resolved).get(name) or value
    without = dict(before.resolved or own.ambient)
    if value != REDACTED and without.get(name) == value:
        return "same value"
    return "not named" if own.unnamed is not None and name in own.unnamed else None


def _are_equal(one: CellStatistics, other: CellStatistics) -> bool:
    ours, theirs = one.variables, other.variables
    if not ours.watched or ours.watched != theirs.watched:
        return False
    return _options(ours) == _options(theirs) and (
        ours.resolved == theirs.resolved and len(ours.resolved) == len(ours.watched)
    )


def _options(variables: WatchedVariables) -> set[tuple[str, str]]:
    return {each for each in variables.overlay if each[0].startswith(OPTION)}
