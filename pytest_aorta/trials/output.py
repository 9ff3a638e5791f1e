"""What the output of a command says: steps, metrics, failures, and that nothing was done."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_aorta.trials.command_line import fill_in
from pytest_aorta.trials.detectors import DETECTORS, detected_in, number, plain_line
from pytest_aorta.trials.metric_sources import LINES, PAIR, FollowedFiles
from pytest_aorta.trials.steps import StepClock

#: Groups of a metric's pattern that are no metrics: a step's number, their total, and the duration of a step.
STEP, TOTAL, STEP_MS, STEP_SEC = "step", "total", "step_ms", "step_sec"
_NO_METRICS = (STEP, TOTAL, STEP_MS, STEP_SEC, "pairs")

#: Metrics that every command has.
RETURNCODE, SEED = "returncode", "seed"

#: Failures that are listed; all are counted.
_LISTED = 20

#: Characters that are kept of a line, and of a metric that is no number.
_SHOWN = 300

#: Characters of a line that expressions of this package look at.
_LOOKED_AT = 4000

#: What a line may say of the process that has written it: ``[rank1]:``, ``[default1]:``, ``[1,2]<stdout>:``.
_RANK = re.compile(r"\b(?:local_)?(?:rank|default|gpu)[ =:#]?(\d{1,5})\b|^\[\d+,(\d{1,5})\]<std", re.IGNORECASE)

#: Before the name of a source, where other expressions have their kind.
_SOURCE = "metrics-from "

#: Stands for lines that do not say which process has written them.
_UNNAMED = -1


@dataclass(frozen=True)
class OutputRules:
    """Regular expressions, each searched for in every line of a command's output.

    Attributes:
        fail_on: a match fails the trial; ``@nan`` and the like are the detectors of ``trials.detectors``.
        pass_on: if there are any, the trial passes when one of them has matched, whatever the exit code, and fails
            when none has.
        skip_on: a match means that nothing can be said about the workload.
        metric: with named groups; the last value of each is a metric, but for ``step``, ``total``, ``step_ms`` and
            ``step_sec``.
        metrics_from: see ``trials.metric_sources``.
        fail_on_nonfinite: whether a metric that is NaN or infinite fails the trial; without metrics, any line that says
            such a value.
    """

    fail_on: tuple[str, ...] = ()
    pass_on: tuple[str, ...] = ()
    skip_on: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    fail_on_nonfinite: bool = False

    @classmethod
    def of(cls, config: Any) -> OutputRules:
        """Those in the options of a command."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    def options(self) -> dict[str, Any]:
        """Those that are set, as options of a workload."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}

    @cached_property
    def compiled(self) -> dict[str, list[tuple[str, re.Pattern[str]]]]:
        """The expressions of each kind, with what stands for them in the record."""
        found = {
            kind: [(f"{kind.replace('_', '-')} '{text}'", re.compile(text)) for text in getattr(self, kind)]
            for kind in ("fail_on", "pass_on", "skip_on", "metric")
        }
        sources = [(f"{_SOURCE}{name}", each) for name in self.metrics_from for each in LINES.get(name, ())]
        return {**found, "metric": [*found["metric"], *sources]}

    @property
    def has_steps(self) -> bool:
        """Whether lines say which step is done."""
        return any(STEP in pattern.groupindex for _, pattern in self.compiled["metric"])

    @property
    def has_metrics(self) -> bool:
        return bool(self.metric or self.metrics_from)


#: Names of the options that say what to look for.
OUTPUT_OPTIONS = tuple(each.name for each in fields(OutputRules))


def checked_regex(text: object) -> str:
    """A regular expression.

    Raises:
        ValueError: what would be valid.
    """
    if not isinstance(text, str) or not text:
        raise ValueError("a regular expression of Python")
    if re.fullmatch(r"@[\w-]+", text) and text[1:] not in DETECTORS:
        raise ValueError(f"a regular expression of Python, or one of {', '.join(f'@{name}' for name in DETECTORS)}")
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


def merged(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the lines of all ranks say together."""
    found: dict[str, Any] = {"matched": {}, "detected": {}, "warnings": []}
    for report in reports:
        for name, lines in report["matched"].items():
            found["matched"][name] = found["matched"].get(name, 0) + lines
        for name, said in report["detected"].items():
            lines = found["detected"].get(name, {"lines": 0})["lines"] + said["lines"]
            found["detected"][name] = {**said, **found["detected"].get(name, {}), "lines": lines}
        found["warnings"] += [text for text in report["warnings"] if text not in found["warnings"]]
    return found


class _Steps:
    """The steps that one process has said, or several that do not say which of them it is.

    A number that goes back to the first one begins a new count, as that of an epoch. One that goes back to another is
    of another process: then the time of a step is that between the moments at which any process has first said it.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.said_ms: list[float] = []
        self.are_mixed = False
        self._first = self._most = 0
        self._clock, self._of_first = StepClock(), StepClock()
        self._clock.start()
        self._of_first.start()

    def report(self, step: int, at: float) -> None:
        if self.step is None:
            self._first, self._most = step, step - 1
        elif self._first < step < self.step:
            self.are_mixed = True
        if step > self._most:
            self._most = step
            self._of_first.report(step, at)
        self._clock.report(step, at)
        self.step = step

    @property
    def times_ms(self) -> list[float]:
        return self.said_ms or (self._of_first if self.are_mixed else self._clock).times_ms()


class OutputFindings:
    """What the lines of one command have said so far, and the files that its metrics come from.

    Attributes:
        failures: the first of them, as entries of ``failure_details``.
        reason: the first of them, in a sentence.
        failure_count: number of matches and values that fail the trial.
        first_failure: the step in which the first of them came.
        passed: whether a ``pass_on`` has matched.
        skipped: the line that matches a ``skip_on``; empty for none.
        matched: number of lines that each expression matches.
        detected: by the name of a detector, ``lines``, ``first`` and ``step``; in the order of their first lines.
    """

    def __init__(self, rules: OutputRules) -> None:
        self.rules = rules
        self.failures: list[dict[str, Any]] = []
        self.failure_count = 0
        self.reason = ""
        self.first_failure: int | None = None
        self.passed = False
        self.skipped = ""
        self.detected: dict[str, dict[str, Any]] = {}
        self._patterns = rules.compiled
        self.matched = {name: 0 for each in self._patterns.values() for name, _ in each}
        self._steps: dict[int, _Steps] = {}
        self._metrics: dict[int, dict[str, int | float | str]] = {}
        #: Values that are no numbers, by the name of their metric.
        self._texts: dict[str, str] = {}
        self._files: dict[str, FollowedFiles] = {}
        for source in rules.metrics_from:
            if source not in LINES:
                kind, _, path = source.partition(":")
                self._files[f"{_SOURCE}{source}"] = FollowedFiles(kind, Path(*fill_in([path], os.environ)))

    @property
    def _told(self) -> _Steps:
        return self._steps[min(self._steps)] if self._steps else _Steps()

    @property
    def step(self) -> int | None:
        """The last one, of the process with the lowest rank; ``None`` before the first."""
        return self._told.step

    @property
    def total(self) -> int | None:
        """Number of steps, where a line has said it."""
        return self._told.total

    @property
    def step_times_ms(self) -> list[float]:
        """Durations that lines have said; without any, the times between steps, per step."""
        return self._told.times_ms

    @property
    def metrics(self) -> dict[str, int | float | str]:
        """Last value of each; of several processes, that of the lowest rank that has said it."""
        return {
            name: value for rank in sorted(self._metrics, reverse=True) for name, value in self._metrics[rank].items()
        }

    def take(self, line: str, at: float) -> bool:
        """One line, which came ``at`` a time in seconds; whether it has said a step."""
        line = plain_line(line)
        found_rank = _RANK.search(line[:_LOOKED_AT])
        rank = int(found_rank[1] or found_rank[2]) if found_rank else _UNNAMED
        steps = [
            self._take_match(found, name, rank, line, at)
            for name, pattern in self._patterns["metric"]
            for found in pattern.finditer(line[:_LOOKED_AT] if name.startswith(_SOURCE) else line)
        ]
        names = detected_in(line[:_LOOKED_AT])
        for name in names:
            self._detect(name, rank, line)
        for text, (name, pattern) in zip(self.rules.fail_on, self._patterns["fail_on"], strict=True):
            if text[1:] in names if text[0] == "@" and text[1:] in DETECTORS else pattern.search(line):
                self.matched[name] += 1
                self._fail(rank, line.strip()[:_SHOWN], f"its output matches {text!r}", line)
        if "nan" in names and self.rules.fail_on_nonfinite and not self.rules.has_metrics:
            self._fail(rank, line.strip()[:_SHOWN], "its output says nan", line)
        self.passed = self._matches("pass_on", line) or self.passed
        if self._matches("skip_on", line):
            self.skipped = self.skipped or line.strip()[:_SHOWN]
        return any(steps)

    def _matches(self, kind: str, line: str) -> bool:
        found = [name for name, pattern in self._patterns[kind] if pattern.search(line)]
        for name in found:
            self.matched[name] += 1
        return bool(found)

    def _take_match(self, found: re.Match[str], name: str, rank: int, line: str, at: float) -> bool:
        self.matched[name] += 1
        groups = {group: text for group, text in found.groupdict().items() if text is not None}
        step = number(groups.get(STEP, ""))
        total = number(groups.get(TOTAL, ""))
        told = self._steps.get(rank) or _Steps()
        if isinstance(step, int) and not (name == f"{_SOURCE}hf" and told.total not in (None, total)):
            self._steps[rank] = told  # another bar of the Trainer is that of an evaluation
            told.report(step, at)
            told.total = total if isinstance(total, int) else told.total
        for group, factor in ((STEP_MS, 1.0), (STEP_SEC, 1000.0)):
            duration = number(groups.get(group, ""))
            if duration is not None and 0 <= duration < math.inf:
                self._steps.setdefault(rank, told).said_ms.append(duration * factor)
        for group in (group for group in groups if group not in _NO_METRICS):
            value = number(groups[group])
            if value is None:
                self._texts[group] = groups[group][:_SHOWN]
            self._take_value(group, groups[group][:_SHOWN] if value is None else value, rank, line)
        for pair in PAIR.finditer(groups.get("pairs", "")):
            value = number(pair["value"])
            if value is not None and pair["name"] not in (RETURNCODE, SEED):
                self._take_value(pair["name"], value, rank, line)
        return isinstance(step, int) and told is self._told

    def _take_value(self, name: str, value: float | str, rank: int, line: str) -> None:
        self._metrics.setdefault(rank, {})[name] = value
        if isinstance(value, str) or math.isfinite(value):
            return
        if self.rules.fail_on_nonfinite:
            self._fail(rank, f"{name} is {value}")
        if not line or "nan" not in detected_in(line[:_LOOKED_AT]):
            self._detect("nan", rank, line or f"{name} is {value}")

    def read_files(self) -> None:
        """Take in what the files say that metrics come from, once the command has ended."""
        for name, files in self._files.items():
            self.matched[name] = 0
            told = _Steps()
            has_steps = bool(self._steps)  # lines say them
            for row in files.rows():
                self.matched[name] += 1
                if row.step is not None and not has_steps:
                    self._steps.setdefault(_UNNAMED, told).report(row.step, row.at or 0.0)
                for metric, value in row.values.items():
                    self._take_value(metric, value, _UNNAMED, "")

    def report(self) -> dict[str, Any]:
        """For the record; ``warnings`` are about the trial, whatever has become of it."""
        warnings = [f"its metric {name} is no number: {text[:80]!r}" for name, text in self._texts.items()]
        if any(steps.are_mixed for steps in self._steps.values()):
            warnings.append(
                "step numbers go back, as those of several processes in one pipe do; "
                "a step's time is that until any of them has said the next"
            )
        return {"matched": self.matched, "detected": self.detected, "warnings": warnings}

    def _step_of(self, rank: int) -> int | None:
        return self._steps[rank].step if rank in self._steps else self.step

    def _detect(self, name: str, rank: int, line: str) -> None:
        step = self._step_of(rank)
        where = {} if step is None else {"step": step}
        self.detected.setdefault(name, {"lines": 0, "first": line.strip()[:_SHOWN], **where})["lines"] += 1

    def _fail(self, rank: int, what: str, why: str = "", line: str = "") -> None:
        step = self._step_of(rank)
        if self.failure_count == 0:
            self.first_failure = step if step is not None and step >= 0 else None
            where = "" if step is None else f" at step {step}"
            self.reason = f"{why or what}{where}" + (f": {line.strip()[:_SHOWN]}" if line else "")
        self.failure_count += 1
        if len(self.failures) < _LISTED:
            self.failures.append({"message": what, **({} if step is None else {"step": step})})
