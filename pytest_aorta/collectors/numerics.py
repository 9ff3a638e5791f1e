"""The first tensor that is not finite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, CollectorSummary, Value

#: Order of the phases within a step.
_PHASES = ("forward", "backward", "gradients", "optimizer")


class Numerics(Collector):
    """The first tensor with a NaN or Inf of each rank: step, module, forward or backward, and what produced it.

    Attributes of the data: ``first`` is the finding of the first rank, ``ranks`` has one of each rank (null
    for none), ``reached`` says how ranks got it that were not the first. The file ``heat.json`` has, for each rank and
    each tensor in the order of execution, the step, absolute maximum and norm of the last steps.
    """

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "threshold": (float("inf"), "absolute value above which an element is bad, too"),
        "window": (5, "steps before the bad one whose absolute maxima are kept"),
        "norms": (False, "keep norms as well"),
        "save": (False, "save the bad tensor and its module's inputs, and a script that runs the module alone"),
    }
    in_process: ClassVar[Path | None] = Path(__file__).with_name("in_process") / "numerics.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        told = {
            int(path.stem.removeprefix("rank_")): json.loads(path.read_text())
            for path in sorted(folder.glob("rank_*.json"))
        }
        bad = {rank: each["found"] for rank, each in told.items() if each["found"] is not None}
        data: dict[str, Any] = {
            "ranks": {str(rank): each["found"] for rank, each in told.items()},
            "steps": {str(rank): each["steps"] for rank, each in told.items()},
        }
        scaled = sorted({step for each in told.values() for step in each["scaled_steps"]})
        if scaled:
            data["scaled_steps"] = scaled
        artifacts = [path for suffix in ("pt", "py") for path in sorted(folder.glob(f"*.saved.{suffix}"))]
        if told:
            artifacts.append(folder / "heat.json")
            artifacts[-1].write_text(json.dumps({str(rank): each["rows"] for rank, each in told.items()}))
        for path in folder.glob("rank_*.json"):
            path.unlink()
        if not bad:
            return CollectorSummary("", data, artifacts)
        first = min(bad, key=lambda rank: _order_of(bad[rank]))
        together = sorted(rank for rank in bad if _order_of(bad[rank]) == _order_of(bad[first]))
        data["first_step"] = self.first_step
        data["first"] = {"rank": first, **bad[first]}
        data["reached"] = {str(rank): self._how(bad[rank], bad[first]) for rank in sorted(bad) if rank not in together}
        return CollectorSummary(self._sentence(bad[first], together, told, data["reached"]), data, artifacts)

    def _sentence(
        self, bad: Mapping[str, Any], ranks: Sequence[int], told: Mapping[int, Any], reached: Mapping[str, str]
    ) -> str:
        limit = self.given["threshold"]
        kind = "non-finite tensor" if limit == float("inf") else f"tensor above {limit:g}"
        parts = [f"first {kind}: {self.step_name(bad['step'])}", *([_ranks(ranks, len(told))] if len(told) > 1 else [])]
        text = f"{', '.join(parts)}, {_thing(bad)}"
        if "bad" in bad:
            text += f", {bad['bad']} of {bad['elements']} elements"
        text += _cause(bad, is_shared=len(ranks) == len(told) > 1)
        ways: dict[str, list[int]] = {}
        for rank, how in reached.items():
            ways.setdefault(how, []).append(int(rank))
        for how, others in ways.items():
            text += f"; {_ranks(others, len(told))} had it {how}"
        return text

    def _how(self, bad: Mapping[str, Any], first: Mapping[str, Any]) -> str:
        step = self.step_name(bad["step"])
        if bad["phase"] == "gradients" and bad.get("reduced"):
            return f"by the reduction of gradients in {step}"
        if bad["step"] == first["step"] and bad.get("inputs_finite") and bad["phase"] == first["phase"] == "forward":
            return f"by a collective in or before {bad['module']} in {step}"
        return f"in {step}, {_thing(bad)}"


def _order_of(bad: Mapping[str, Any]) -> tuple[int, int, int]:
    return bad["step"], _PHASES.index(bad["phase"]), bad["number"]


def _ranks(ranks: Sequence[int], of: int) -> str:
    if len(ranks) == of > 1:
        return "all ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _thing(bad: Mapping[str, Any]) -> str:
    where, what = bad["module"], bad["what"]
    if bad["phase"] in ("forward", "backward"):
        return f"{bad['phase']}, {where} {what}"
    return f"gradient of {where} before the update" if bad["phase"] == "gradients" else f"{where} after the update"


def _cause(bad: Mapping[str, Any], *, is_shared: bool) -> str:
    if changed := bad.get("overwritten"):
        alias = f"; alias of {', '.join(bad['alias_of'])}" if bad.get("alias_of") else ""
        how = "changed in place" if changed["in_place"] else "overwritten, unknown to autograd,"
        return f"; its input was finite when {changed['made_by']} gave it and was {how} before it was read{alias}"
    if bad.get("bad_parameters"):
        return f"; its {', '.join(bad['bad_parameters'])} had been bad before"
    if bad["phase"] == "gradients":
        if not bad.get("reduced"):
            return "; finite as the backward pass gave it"
        return "; finite before it was reduced" + (" in every rank" if is_shared else "")
    if bad["phase"] == "optimizer":
        return "; its gradient was finite"
    if bad.get("inputs_finite") is None:
        return ""
    if bad["phase"] == "backward":
        if bad["inputs_finite"]:
            return ", the gradients of its outputs were finite"
        return f"; no module gave it: it comes from the code that used {bad['module']}"
    if bad["inputs_finite"]:
        return ", its inputs were finite" + ("; a forward hook of it gave it" if bad.get("by_hook") else "")
    made_by = (bad.get("input") or {}).get("made_by")
    if made_by:
        return f"; its input came from {made_by}"
    after = f" after {bad['after']}" if bad.get("after") else ""
    return f"; its input was bad already, and no module gave it: it comes from the code of {bad['inside']}{after}"
