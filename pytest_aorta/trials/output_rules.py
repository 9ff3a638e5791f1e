"""What the output of a command says: whether it has failed, its steps and its metrics."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: Groups of a metric's pattern that are no metrics: a step's number, their total, and the duration of a step.
STEP, TOTAL, STEP_MS, STEP_SEC = "step", "total", "step_ms", "step_sec"
_NO_METRICS = (STEP, TOTAL, STEP_MS, STEP_SEC)

#: Metrics that every command has.
RETURNCODE, SEED = "returncode", "seed"

#: Failures that are listed; all are counted.
_LISTED = 20

#: Characters that are kept of a line, and of a metric that is no number.
_SHOWN = 300

#: What a sentence may put around a number.
_AROUND = " \t,;:()[]{}'\"%"


@dataclass(frozen=True)
class OutputRules:
    """Regular expressions, each searched for in every line of a command's output.

    Attributes:
        fail_on: a match fails the trial.
        pass_on: if there are any, the trial passes when one of them has matched, whatever the exit code, and fails
            when none has.
        metric: with named groups; the last value of each is a metric, but for ``step``, ``total``, ``step_ms`` and
            ``step_sec``.
        fail_on_nonfinite: whether a metric that is NaN or infinite fails the trial.
    """

    fail_on: tuple[str, ...] = ()
    pass_on: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    fail_on_nonfinite: bool = False

    def options(self) -> dict[str, Any]:
        """Those that are set, as options of a workload."""
        found: dict[str, Any] = {
            name: list(getattr(self, name)) for name in ("fail_on", "pass_on", "metric") if getattr(self, name)
        }
        return {**found, **({"fail_on_nonfinite": True} if self.fail_on_nonfinite else {})}

    @cached_property
    def compiled(self) -> dict[str, list[re.Pattern[str]]]:
        """The expressions, by the name of their attribute."""
        return {name: [re.compile(text) for text in getattr(self, name)] for name in ("fail_on", "pass_on", "metric")}

    @property
    def has_steps(self) -> bool:
        """Whether lines say which step is done."""
        return any(STEP in pattern.groupindex for pattern in self.compiled["metric"])


def checked_regex(text: object) -> str:
    """A regular expression.

    Raises:
        ValueError: what would be valid.
    """
    if not isinstance(text, str) or not text:
        raise ValueError("a regular expression of Python")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"a regular expression of Python ({error})") from None
    return text


def checked_metric(text: object) -> str:
    """A regular expression with named groups.

    Raises:
        ValueError: what would be valid.
    """
    checked = checked_regex(text)
    names = set(re.compile(checked).groupindex)
    if not names:
        raise ValueError(r"a regular expression with named groups, such as 'step (?P<step>\d+) loss (?P<loss>\S+)'")
    if RETURNCODE in names or SEED in names:
        raise ValueError(f"a regular expression without groups called {RETURNCODE} or {SEED}: these are there")
    return checked


def number(text: str) -> int | float | None:
    """The number that a text is, perhaps with punctuation around it; ``None`` where it is none."""
    text = text.strip(_AROUND)
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None


class OutputFindings:
    """What the lines of one command have said so far.

    Attributes:
        step: the last one; ``None`` before the first.
        total: number of steps, where a line has said it.
        metrics: last value of each.
        failures: the first of them, as entries of ``failure_details``.
        reason: the first of them, in a sentence.
        failure_count: number of matches and values that fail the trial.
        first_failure: the step in which the first of them came.
        passed: whether a ``pass_on`` has matched.
    """

    def __init__(self, rules: OutputRules) -> None:
        self.rules = rules
        self.step: int | None = None
        self.total: int | None = None
        self.metrics: dict[str, int | float | str] = {}
        self.failures: list[dict[str, Any]] = []
        self.failure_count = 0
        self.reason = ""
        self.first_failure: int | None = None
        self.passed = False
        self._said_ms: list[float] = []
        self._between_ms: list[float] = []
        self._step_at: float | None = None
        #: When the lines before those that were read together came; how many these are; steps between them.
        self._read_at, self._lines_read, self._steps_read = 0.0, 0, 0
        self._patterns = rules.compiled

    @property
    def step_times_ms(self) -> list[float]:
        """Durations that lines have said; without any, the times between steps, per step."""
        return self._said_ms or [*self._between_ms, *self._read_together()]

    def take(self, line: str, at: float) -> bool:
        """One line, which came ``at`` a time in seconds; whether it has said a step."""
        steps = [
            self._take_match(found, line, at)
            for pattern in self._patterns["metric"]
            for found in pattern.finditer(line)
        ]
        for text, pattern in zip(self.rules.fail_on, self._patterns["fail_on"], strict=True):
            if pattern.search(line):
                self._fail(line.strip()[:_SHOWN], f"its output matches {text!r}", line)
        self.passed = self.passed or any(pattern.search(line) for pattern in self._patterns["pass_on"])
        return any(steps)

    def _take_match(self, found: re.Match[str], line: str, at: float) -> bool:
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        step = number(groups.get(STEP, ""))
        total = number(groups.get(TOTAL, ""))
        is_step = isinstance(step, int)
        if isinstance(total, int):
            self.total = total
        if isinstance(step, int):
            self._take_step(step, at)
        for name, factor in ((STEP_MS, 1.0), (STEP_SEC, 1000.0)):
            duration = number(groups.get(name, ""))
            if duration is not None and 0 <= duration < math.inf:
                self._said_ms.append(duration * factor)
        for name in (name for name in groups if name not in _NO_METRICS):
            value = number(groups[name])
            self.metrics[name] = groups[name][:_SHOWN] if value is None else value
            if self.rules.fail_on_nonfinite and value is not None and not math.isfinite(value):
                self._fail(f"{name} is {value}")
        return is_step

    def _take_step(self, step: int, at: float) -> None:
        if step == self.step:  # the same, in another pattern or on another line
            return
        if self._step_at is None or self.step is None:
            self._read_at = at
        elif at > self._step_at:
            self._between_ms += self._read_together()
            self._read_at, self._lines_read, self._steps_read = self._step_at, 0, 0
        if self.step is not None and at > self._read_at:
            self._lines_read += 1
            self._steps_read += max(1, step - self.step)  # an epoch may begin at 0 again
        self.step, self._step_at = step, at

    def _read_together(self) -> list[float]:
        """Of the last lines: when each of them was written is not known, so they share the time."""
        if self._step_at is None or self._lines_read == 0:
            return []
        return [(self._step_at - self._read_at) * 1000 / self._steps_read] * self._lines_read

    def _fail(self, what: str, why: str = "", line: str = "") -> None:
        """Note ``what`` has failed, and of the first one ``why``, and the ``line`` that says so."""
        if self.failure_count == 0:
            self.first_failure = self.step if self.step is not None and self.step >= 0 else None
            step = "" if self.step is None else f" at step {self.step}"
            self.reason = f"{why or what}{step}" + (f": {line.strip()[:_SHOWN]}" if line else "")
        self.failure_count += 1
        if len(self.failures) < _LISTED:
            self.failures.append({"message": what, **({} if self.step is None else {"step": self.step})})
