"""What is compared of the hosts that trials ran on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_aorta.triage.facts import HostConditions, TrialFacts

#: Seconds without any trial after which the host is as if none had run before.
_IDLE = 60.0


@dataclass(frozen=True)
class Condition:
    """One of the facts about a host.

    Attributes:
        name: in words.
        value: of a trial; ``None`` where it is not known.
        text: of a value.
        least: the smallest change that matters: a difference, or where ``relative`` a part of the smaller value.
        settles_sec: how long trials have to run until they themselves change it no more.
    """

    name: str
    value: Callable[[HostConditions], float | None]
    text: Callable[[float], str]
    least: float
    relative: bool = False
    settles_sec: float = 0.0

    def matters(self, one: float, other: float) -> bool:
        """Whether two values differ by enough."""
        return abs(one - other) >= self.least * (min(abs(one), abs(other)) if self.relative else 1.0)


CONDITIONS = (
    # An average of one minute comes within 5 % of its end in three.
    Condition("load of the host, per CPU", lambda host: host.load, "{:.1f}".format, 0.5, settles_sec=180),
    Condition("time waiting for a CPU", lambda host: host.cpu_pressure, "{:.0f}%".format, 25, settles_sec=30),
    Condition("time waiting for memory", lambda host: host.memory_pressure, "{:.0f}%".format, 10, settles_sec=30),
    Condition("clock of the processor", lambda host: host.clock_mhz, "{:.0f} MHz".format, 0.1, relative=True),
    Condition(
        "memory available on the host",
        lambda host: host.memory_available_bytes,
        lambda number: f"{number / 2**30:.1f} GiB",
        0.33,
        relative=True,
    ),
)


def started(facts: TrialFacts) -> float | None:
    """When a trial began, in seconds of ``time.time()``; ``None`` where its record does not say."""
    try:
        return datetime.fromisoformat(facts.started_at).timestamp()
    except ValueError:
        return None


def busy_since(trials: Sequence[TrialFacts]) -> dict[str, float]:
    """For each file of a trial, when the first one began since when trials have run without a pause."""
    times = sorted((at, at + (facts.wall_sec or 0.0), facts.file) for facts in trials if (at := started(facts)))
    found: dict[str, float] = {}
    begin = end = float("-inf")
    for at, until, file in times:
        if at - end > _IDLE:
            begin = at
        end = max(end, until)
        found[file] = begin
    return found


def main_host(trials: Sequence[TrialFacts]) -> str | None:
    """The host that most trials ran on."""
    names = Counter(facts.host.name for facts in trials)
    return names.most_common(1)[0][0] if names else None
