"""Reads steps, metrics and failures from the output of a command, by the expressions of its user."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_aorta.trials.command_line import fill_in
from pytest_aorta.trials.lines import (
    DETECTORS,
    TRACEBACK,
    RaisedLines,
    detected_in,
    is_of_metrics,
    named,
    not_finite_in,
    number,
    plain_line,
)
from pytest_aorta.trials.readers import (
    AUTO,
    FORMATS,
    NAMES,
    NO_METRICS,
    PAIRS,
    STEP,
    STEP_MS,
    STEP_SEC,
    TOTAL,
    FollowedFiles,
    pairs_in,
    said_step,
)
from pytest_aorta.trials.steps import SaidSteps

#: Metrics that every command has.
RETURNCODE, SEED = "returncode", "seed"

#: Number of failures that are listed; all are counted.
_LISTED = 20

#: Characters that are kept of a line, and of a metric that is no number.
_SHOWN = 300

#: Characters of a line that expressions of this package look at.
_LOOKED_AT = 4000

#: What a line may say of the process that has written it: ``[rank1]:``, ``[default1]:``, ``[1,2]<stdout>:``.
_RANK = re.compile(r"\b(?:local_)?(?:rank|default|gpu)[ =:#]?(\d{1,5})\b|^\[\d+,(\d{1,5})\]<std", re.IGNORECASE)

#: Lines at the end that may be its last words.
_LAST = 20

#: Before the name of a source, where other expressions have their kind.
_SOURCE = "metrics-from "

#: Stands for lines that do not say which process has written them.
_UNNAMED = -1


@dataclass(frozen=True)
class OutputRules:
    """Regular expressions, each searched for in every line of a command's output.

    Attributes:
        fail_on: a match fails the trial; ``@nan`` and the like are ``DETECTORS``.
        pass_on: if there are any, the trial fails when none of them has matched.
        skip_on: a match means that nothing can be said about the workload.
        metric: with named groups; the last value of each is a metric, but for ``step``, ``total``, ``step_ms`` and
            ``step_sec``.
        metrics_from: names of ``FORMATS``, ``auto``, or ``FILES`` with a path.
        fail_on_nonfinite: whether any value that is NaN or infinite fails the trial, as such a metric always does.
        allow_nonfinite: names of values that may be so, also several with commas.
    """

    fail_on: tuple[str, ...] = ()
    pass_on: tuple[str, ...] = ()
    skip_on: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    fail_on_nonfinite: bool = False
    allow_nonfinite: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Any) -> OutputRules:
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    def options(self) -> dict[str, Any]:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}

    @cached_property
    def compiled(self) -> dict[str, list[tuple[str, re.Pattern[str]]]]:
        """The expressions of each kind, with what stands for them in the record."""
        return {
            kind: [(f"{kind.replace('_', '-')} '{text}'", re.compile(text)) for text in getattr(self, kind)]
            for kind in ("fail_on", "pass_on", "skip_on", "metric")
        }

    @property
    def has_steps(self) -> bool:
        """Whether expressions and formats that the user has named say steps."""
        of_formats = (each.expression for each in FORMATS if each.name in self.metrics_from)
        return any(STEP in each.groupindex for each in (*(each for _, each in self.compiled["metric"]), *of_formats))


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
        has_begun: whether a line has said a step or a metric, also one that nothing of the user's looks for.
    """

    def __init__(self, rules: OutputRules) -> None:
        self.rules = rules
        self.failures: list[dict[str, Any]] = []
        self.failure_count = 0
        self.reason = ""
        self.first_failure: int | None = None
        self.passed = self.has_begun = False
        self.skipped = ""
        self.detected: dict[str, dict[str, Any]] = {}
        self._patterns = rules.compiled
        self.matched = {name: 0 for each in self._patterns.values() for name, _ in each}
        self.matched |= {f"{_SOURCE}{name}": 0 for name in rules.metrics_from}
        self._formats = [each for each in FORMATS if AUTO in rules.metrics_from or each.name in rules.metrics_from]
        #: Of the format that says the steps, where that is not known before.
        self._rank_of_format = len(NAMES)
        self._names = {named(name) for _, each in self._patterns["metric"] for name in each.groupindex} - {*NO_METRICS}
        self._allowed = {named(name) for names in rules.allow_nonfinite for name in names.split(",")}
        self._steps: dict[int, SaidSteps] = {}
        #: In lines of whatever form.
        self._guessed = SaidSteps()
        self._metrics: dict[int, dict[str, int | float | str]] = {}
        self._knows_ranks = False
        #: Values that are no numbers, by the name of their metric.
        self._texts: dict[str, str] = {}
        #: The last lines, without those with metrics that are looked for.
        self._last: deque[str] = deque(maxlen=_LAST)
        self._raised = RaisedLines()
        self._files: dict[str, FollowedFiles] = {}
        for source in rules.metrics_from:
            kind, _, path = source.partition(":")
            if path:
                self._files[f"{_SOURCE}{source}"] = FollowedFiles(kind, Path(*fill_in([path], os.environ)))

    @property
    def _told(self) -> SaidSteps:
        return self._steps[min(self._steps)] if self._steps else SaidSteps()

    @property
    def step(self) -> int | None:
        """The last one, of the process with the lowest rank; ``None`` before the first."""
        return self._told.step

    @property
    def total(self) -> int | None:
        return self._told.total

    @property
    def step_times_ms(self) -> list[float]:
        """Durations that lines have said; without any, the times between steps, per step."""
        return self._told.times_ms

    @property
    def metrics(self) -> dict[str, int | float | str]:
        """Last value of each metric; of several processes, from the lowest rank that has said it."""
        return {
            name: value for rank in sorted(self._metrics, reverse=True) for name, value in self._metrics[rank].items()
        }

    @property
    def last_words(self) -> str:
        """The last line with a word that says more than metrics; empty for none."""
        return next((line for line in reversed(self._last) if re.search(r"\w", line) and not is_of_metrics(line)), "")

    def take(self, line: str, at: float, rank: int | None = None) -> bool:
        """One line, which came ``at`` a time in seconds; whether it has said a step.

        ``rank``: of the process that has written it, where each has an output of its own.
        """
        line = plain_line(line)
        shown, looked_at, before = line.strip()[:_SHOWN], line[:_LOOKED_AT], self.failure_count
        self._knows_ranks = rank is not None
        if rank is None:
            found_rank = _RANK.search(looked_at)
            rank = int(found_rank[1] or found_rank[2]) if found_rank else _UNNAMED
        matches = [(match, name, "") for name, pattern in self._patterns["metric"] for match in pattern.finditer(line)]
        matches += self._of_formats(looked_at)
        steps = [self._take_match(*each, rank, line, at) for each in matches]
        guess = said_step(looked_at)
        if guess is not None:
            self._guessed.report(guess, at)
        self.has_begun = self.has_begun or bool(matches) or guess is not None
        if not matches and shown:
            self._last.append(shown)

        values = not_finite_in(looked_at, self._names, self._allowed)
        names = detected_in(looked_at, values) + [TRACEBACK] * self._raised.ends_at(looked_at)
        for name in names:
            self._detect(name, rank, line)
        what = f"{values[0].value} in {values[0].name}" if values else shown
        for text, (name, pattern) in zip(self.rules.fail_on, self._patterns["fail_on"], strict=True):
            if text[1:] in names if text[0] == "@" and text[1:] in DETECTORS else pattern.search(line):
                self.matched[name] += 1
                is_said = values or not (matches or is_of_metrics(line))
                self._fail(rank, what if is_said else f"output matches {text}", f"its output matches {text!r}", line)
        if values and self.rules.fail_on_nonfinite and self.failure_count == before:
            self._fail(rank, what, "its output says nan", line)
        self.passed = self._matches("pass_on", line) or self.passed
        if self._matches("skip_on", line):
            self.skipped = self.skipped or shown
        return any(steps)

    def _of_formats(self, line: str) -> Iterator[tuple[re.Match[str], str, str]]:
        for each in self._formats:
            if each.name in self.rules.metrics_from:
                for each_match in each.expression.finditer(line):
                    yield each_match, f"{_SOURCE}{each.name}", each.name
            elif NAMES.index(each.name) <= self._rank_of_format and (match := each.expression.search(line)):
                if STEP in match.re.groupindex and NAMES.index(each.name) < self._rank_of_format:
                    self._rank_of_format = NAMES.index(each.name)
                    self._steps.clear()  # of something else, such as the bar of a download
                yield match, f"{_SOURCE}{AUTO}", each.name
                return

    def _matches(self, kind: str, line: str) -> bool:
        names = [name for name, pattern in self._patterns[kind] if pattern.search(line)]
        for name in names:
            self.matched[name] += 1
        return bool(names)

    def _take_match(self, match: re.Match[str], name: str, of_format: str, rank: int, line: str, at: float) -> bool:
        self.matched[name] += 1
        groups = {group: text for group, text in match.groupdict().items() if text is not None}
        step = number(groups.get(STEP, ""))
        total = number(groups.get(TOTAL, ""))
        told = self._steps.get(rank) or SaidSteps()
        if isinstance(step, int) and not (of_format == "hf" and told.total not in (None, total)):
            self._steps[rank] = told  # another bar of the Trainer is that of an evaluation
            told.report(step, at)
            told.total = total if isinstance(total, int) else told.total
        for group, factor in ((STEP_MS, 1.0), (STEP_SEC, 1000.0)):
            duration = number(groups.get(group, ""))
            if duration is not None and 0 <= duration < math.inf:
                self._steps.setdefault(rank, told).said_ms.append(duration * factor)
        for group in (group for group in groups if group not in NO_METRICS):
            value = number(groups[group])
            if value is None:
                self._texts[group] = groups[group][:_SHOWN]
            self._take_value(group, groups[group][:_SHOWN] if value is None else value, rank, line)
        for metric, text in pairs_in(groups.get(PAIRS, "")):
            value = number(text)
            if value is not None and metric not in (RETURNCODE, SEED, *NO_METRICS):
                self._take_value(metric, value, rank, line)
        return isinstance(step, int) and told is self._told

    def _take_value(self, name: str, value: float | str, rank: int, line: str) -> None:
        self._metrics.setdefault(rank, {})[name] = value
        if isinstance(value, str) or math.isfinite(value) or named(name) in self._allowed:
            return
        self._fail(rank, f"{'NaN' if math.isnan(value) else value} in {name}", f"{name} is {value}")
        if not line or not not_finite_in(line[:_LOOKED_AT], self._names, self._allowed):
            self._detect("nan", rank, line or f"{name} is {value}")

    def read_files(self) -> None:
        """Take in what the files say that metrics come from, once the command has ended."""
        for name, files in self._files.items():
            self.matched[name] = 0
            told = SaidSteps()
            has_steps = bool(self._steps)  # lines say them
            for row in files.rows():
                self.matched[name] += 1
                self.has_begun = True
                if row.step is not None and not has_steps:
                    self._steps.setdefault(_UNNAMED, told).report(row.step, row.at or 0.0)
                for metric, value in row.values.items():
                    self._take_value(metric, value, _UNNAMED, "")

    def report(self) -> dict[str, Any]:
        """For the record; ``warnings`` are about the trial, whatever has become of it; ``steps`` as ``numbers``."""
        warnings = [f"its metric {name} is no number: {text[:80]!r}" for name, text in self._texts.items()]
        if any(steps.are_mixed for steps in self._steps.values()):
            warnings.append(
                "step numbers go back, as those of several processes in one pipe do; "
                "a step's time is that until any of them has said the next"
            )
        said = self._guessed if self.step is None else self._told
        numbers = {} if said.step is None else {"steps": said.numbers}
        told = {"matched": self.matched, "detected": self.detected, "begun": self.has_begun, "warnings": warnings}
        return {**told, **numbers}

    def steps_of(self, rank: int) -> tuple[int | None, int | None]:
        """The last step of a rank, and of how many."""
        told = self._steps.get(rank, SaidSteps())
        return told.step, told.total

    def _step_of(self, rank: int) -> int | None:
        return self._steps[rank].step if rank in self._steps else self.step

    def _detect(self, name: str, rank: int, line: str) -> None:
        step = self._step_of(rank)
        where = {} if step is None else {"step": step}
        self.detected.setdefault(name, {"lines": 0, "first": line.strip()[:_SHOWN], **where})["lines"] += 1

    def _fail(self, rank: int, what: str, why: str, line: str = "") -> None:
        step = self._step_of(rank)
        is_known = self._knows_ranks and rank != _UNNAMED
        if self.failure_count == 0:
            self.first_failure = step if step is not None and step >= 0 else None
            where = "" if step is None else f" at step {step}"
            self.reason = f"{why}{where}" + (f": {line.strip()[:_SHOWN]}" if line else "")
            self.reason = f"rank {rank}: {self.reason}" if is_known else self.reason
        self.failure_count += 1
        if len(self.failures) < _LISTED:
            of = {"rank": rank} if is_known else {}
            self.failures.append({"message": what, **({} if step is None else {"step": step}), **of})
