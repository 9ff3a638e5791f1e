"""A sweep recipe of AORTA's as the text of a recipe.

The cells of an action are all environments with all mitigation sets, and have the rest in common. So cells that differ
in something else, such as options or variables, become actions of their own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.sweeps import Collect, Sweep, SweepCell

#: AORTA's threshold of the ratio of step times, which is not asked for here.
_THRESHOLD = 1.15

_ISOLATION = {"process": "spawn", "in_process": "none"}


@dataclass
class _Action:
    """Cells that have all but environment and mitigations in common."""

    keys: Mapping[str, Any]
    cells: list[SweepCell]
    environments: list[str] = field(default_factory=list)
    mitigations: list[str] = field(default_factory=list)


def converted(sweep: Sweep) -> tuple[str, list[str]]:
    """The text of a recipe, and what of the sweep is not in it.

    Raises:
        RequestError: an option has a value that TOML does not have.
    """
    actions = _actions(sweep)
    notes = [*_notes(sweep), *_comparisons(sweep, actions)]
    name = {id(action): "matrix" if len(actions) == 1 else action.cells[0].name for action in actions}
    lines = [f"# ticket: {_comment(sweep.ticket)}"] if sweep.ticket else []
    lines += [f"# not converted: {_comment(note)}" for note in notes]
    for action in actions:
        lines += ["", *(f"# {cell.name}: {_label(cell)}" for cell in action.cells), "[[action]]"]
        keys = {"name": name[id(action)], **_table(sweep, action)}
        lines += [f"{key} = {_toml(value, key)}" for key, value in keys.items()]
    return "\n".join(lines).lstrip("\n") + "\n", notes


def _actions(sweep: Sweep) -> list[_Action]:
    """Cells by what they have in common, in their order; environments with the same mitigation sets together."""
    found: list[_Action] = []
    for cell in sweep.cells:
        keys = _common(sweep, cell)
        text = ",".join(cell.mitigations)
        for action in found:
            same = action.keys == keys and action.environments == [cell.environment]
            if same and text not in action.mitigations:
                action.cells.append(cell)
                action.mitigations.append(text)
                break
        else:
            found.append(_Action(keys, [cell], [str(cell.environment)], [text]))
    merged: list[_Action] = []
    for action in found:
        for other in merged:
            same = other.keys == action.keys and other.mitigations == action.mitigations
            if same and action.environments[0] not in other.environments:
                other.environments += action.environments
                other.cells += action.cells
                break
        else:
            merged.append(action)
    return merged


def _common(sweep: Sweep, cell: SweepCell) -> dict[str, Any]:
    """The keys of an action that a cell decides, apart from environment and mitigations."""
    return {
        "trials": cell.trials or sweep.trials,
        "steps": cell.steps or sweep.steps,
        "config": {**sweep.workload_config, **cell.workload_config},
        "extra_env": {**sweep.extra_env, **cell.extra_env},
        "collect": list(sweep.collect if cell.collect is None else cell.collect),
    }


def _table(sweep: Sweep, action: _Action) -> dict[str, Any]:
    keys = {"workload": sweep.workload, "environments": action.environments, "mitigations": action.mitigations}
    keys |= {name: value for name, value in action.keys.items() if value}
    if sweep.trial_isolation in _ISOLATION:
        keys["isolation"] = _ISOLATION[sweep.trial_isolation]
    baseline = next((cell for cell in action.cells if cell is _baseline(sweep)), None)
    if baseline is not None and len(action.cells) > 1:
        keys["baseline"] = _label(baseline) if len(action.environments) > 1 else ",".join(baseline.mitigations)
    return keys


def _baseline(sweep: Sweep) -> SweepCell | None:
    """The cell that AORTA compares the others with."""
    wanted = sweep.confound.baseline_cell
    if wanted is not None:
        return next(cell for cell in sweep.cells if cell.name == wanted)
    named = [cell for cell in sweep.cells if cell.name.startswith("baseline-")]
    plain = [cell for cell in sweep.cells if cell.mitigations == ("none",)]
    return next(iter([*named, *plain]), None)


def _notes(sweep: Sweep) -> Iterator[str]:
    if sweep.confound.threshold != _THRESHOLD:
        yield f"confound.threshold = {sweep.confound.threshold}: the table has the ratio of step times with an interval"
    if sweep.stop_after is not None:
        yield "stop_after: until_decided = true ends the trials of cells that are decided"
    if any(isinstance(collect, Mapping) and any(collect.values()) for collect in _collects(sweep)):
        yield "collect: options of collectors"


def _collects(sweep: Sweep) -> list[Collect | None]:
    return [sweep.collect, *(cell.collect for cell in sweep.cells)]


def _comparisons(sweep: Sweep, actions: Sequence[_Action]) -> Iterator[str]:
    """Which cells are not in one table with what AORTA compares them with."""
    baseline = _baseline(sweep)
    home = next((action for action in actions if baseline is not None and baseline in action.cells), None)
    for action in actions:
        if home is not None and action is not home and baseline is not None:
            cells = ", ".join(cell.name for cell in action.cells)
            yield (
                f"the comparison of {cells} with {baseline.name}, which has other options: pytest-aorta compare "
                f"workspace/{home.cells[0].name} workspace/{action.cells[0].name}"
            )


def _label(cell: SweepCell) -> str:
    """The name of a cell here."""
    return f"{cell.environment}-{'+'.join(cell.mitigations)}"


def _comment(text: str | None) -> str:
    return " ".join(json.dumps(text or "", ensure_ascii=True)[1:-1].split())


def _toml(value: Any, key: str) -> str:
    """A value as TOML has it, tables inline.

    Raises:
        RequestError: TOML has no such value.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{key} has a text with a lone surrogate, which TOML cannot have") from None
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        pairs = (f"{_key(str(name))} = {_toml(each, f'{key}.{name}')}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return f"[{', '.join(_toml(each, key) for each in value)}]"
    raise RequestError(f"{key} = {value!r}: TOML has no such value; expected a text, a number, true, false or a table")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name, name)
