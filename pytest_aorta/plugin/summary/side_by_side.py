"""What the terminal says of trials that run side by side: what that imposes on them, and whether cores suffice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aorta.trials.execution import Resources


class SideBySideLines:
    """Counts the records of a run."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        #: What was imposed on how many trials.
        self._imposed: Counter[str] = Counter()
        #: How many trials had these: what runs them, how many at a time; ranks, threads of each, cores.
        self._seen: Counter[tuple[str, int, int, int, int]] = Counter()
        self._trials = 0

    def add(self, result: Mapping[str, Any]) -> None:
        """Count a trial's record."""
        self._trials += 1
        beside = result.get("side_by_side")
        if beside is None:
            return
        what = counted(beside["workers"], "xdist worker") if beside["workers"] > 1 else counted(beside["slots"], "slot")
        for text in _impositions(result["imposed"], what, self._resources):
            self._imposed[text] += 1
        threads = _threads(result)
        if threads and beside["cores"]:
            at_a_time = beside["slots"] * beside["workers"]
            self._seen[what, at_a_time, len(result["ranks"]) or 1, threads, beside["cores"]] += 1

    def lines(self, *, one_at_a_time: bool = False) -> list[str]:
        """To be printed below the table. ``one_at_a_time``: trials did not run side by side after all."""
        found = []
        for text, trials in self._imposed.items():
            found.append(text if trials == self._trials else f"{text}; so for {trials} of {self._trials} trials")
        for (what, at_a_time, ranks, threads, cores), _ in self._seen.most_common():
            together = 1 if one_at_a_time else min(at_a_time, self._trials)
            if together == 1 or together * ranks * threads <= cores:
                continue
            processes = f"{what} x {counted(ranks, 'rank')}" if ranks > 1 else what
            found.append(
                f"{processes} x {counted(threads, 'thread')} on {counted(cores, 'core')}: steps may take many times "
                "longer than alone (--aorta-slots=own-cores divides the cores)"
            )
            break
        return found


def _impositions(imposed: Mapping[str, Any], what: str, resources: Resources) -> list[str]:
    found = []
    shares = [counted(len(imposed["cpus"]), "CPU")] if imposed["cpus"] is not None else []
    if imposed["threads"] is not None:
        shares.append(counted(imposed["threads"], "thread"))
    if shares:
        found.append(f"{what}: {' and '.join(shares)} per trial (own-cores)")
    if imposed["devices"] is not None:
        from pytest_aorta.runtime.resources.devices import devices_text

        number = counted(len(imposed["devices"]), "device") if imposed["devices"] else "no device"
        found.append(f"{number} per trial (--aorta-devices {devices_text(resources.devices or ())})")
    return found


def _threads(result: Mapping[str, Any]) -> int | None:
    """Of torch in the trial's process, at the end if it got there; ``None`` where it was not imported."""
    env = result["env"]
    end = ((env.get("end") or {}).get("torch") or {}).get("threads")
    start = (env.get("process") or {}).get("torch_threads")
    threads = (end or start or {}).get("intraop")
    return threads if isinstance(threads, int) else None


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
