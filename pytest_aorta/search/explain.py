"""Which differences between a machine where it works and one where it fails turn the fault on here."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_aorta.common.texts import counted, one_line
from pytest_aorta.probe.environment_facts import OTHER_VARIABLES, VARIABLES, Value, is_hidden
from pytest_aorta.probe.variables import REDACTED, other_variables
from pytest_aorta.search import Steps
from pytest_aorta.search.minimize import Minimize, Minimized, rows_of
from pytest_aorta.triage.environments import OPTIONS, PACKAGES_SECTION, Difference
from pytest_aorta.triage.judging import LEVEL
from pytest_aorta.triage.searches import SearchReport

#: Limits of a process that prlimit(1) can set, by their names in a record.
_LIMITS = ("as", "core", "memlock", "nofile", "nproc", "stack")

#: Options of chrt(1) for the policies that anybody may set.
_POLICIES = {"other": ("--other", "0"), "batch": ("--batch", "0"), "idle": ("--idle", "0")}

#: Differences of a kind that are listed.
_LISTED = 20


@dataclass(frozen=True)
class Setting:
    """What a trial has of one difference.

    Attributes:
        variables: to be set; of ``None``, to be unset.
        launcher: words of a launcher prefix.
        package: a requirement, such as ``numpy==1.26.0``; empty for what is installed.
        options: of the workload.
    """

    variables: Mapping[str, str | None] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    package: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A difference that can be made here: its name, a sentence, and what both sides have."""

    name: str
    text: str
    good: Setting
    bad: Setting


@dataclass(frozen=True)
class ExplainRequest:
    """What ``pytest-aorta explain`` asks for.

    Attributes:
        changes: differences that trials can have, in the order of their importance.
        rest: sentences on those that they cannot.
        signature: only failures whose text contains it count.
    """

    changes: tuple[Change, ...]
    rest: tuple[str, ...] = ()
    signature: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def explain_request(value: Any) -> ExplainRequest:
    """Of JSON, as the command writes it."""
    try:
        given = json.loads(value)
        changes = [
            Change(
                each["name"],
                each["text"],
                *(Setting(**{**each[side], "launcher": tuple(each[side]["launcher"])}) for side in ("good", "bad")),
            )
            for each in given["changes"]
        ]
        return ExplainRequest(tuple(changes), tuple(given["rest"]), given["signature"])
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError("what pytest-aorta explain writes") from error


def sorted_out(differences: Iterable[Difference]) -> tuple[list[Change], list[str]]:
    """The differences that trials here can have, either way; and sentences on the others, with the reason."""
    changes: list[Change] = []
    rest: list[str] = []
    found = list(differences)
    hidden = {each.fact.name for each in found if each.fact.section.startswith(OTHER_VARIABLES)}
    named = {each.fact.name for each in found}
    for each in found:
        section, name = each.fact.section, each.fact.name
        if section == VARIABLES and name in hidden:
            continue  # one side has recorded its value, the other one a digest
        if len(each.before) != 1 or len(each.after) != 1:
            rest.append(f"{each} (one side has several values)")
            continue
        sides: list[Setting] = []
        why = ""
        for value in (each.before[0][0], each.after[0][0]):
            made = _setting(section, name, value, "OMP_NUM_THREADS" in named)
            if isinstance(made, str):
                why = why or made
            else:
                sides.append(made)
        text = one_line(str(each))
        if why or len(sides) < 2:
            rest.append(f"{text} ({why})" if why else text)
        else:
            changes.append(Change(name, text, *sides))
    return changes, rest


def _setting(section: str, name: str, value: Value | None, threads_differ: bool) -> Setting | str:
    """How a trial gets this value. A text says why it cannot; an empty one, that it needs no reason (a kernel)."""
    text = value if isinstance(value, str) else None
    if section == VARIABLES or section.startswith(OTHER_VARIABLES):
        return _variable(section, name, text)
    if section == PACKAGES_SECTION:
        return _package(name, text)
    if section == OPTIONS:
        option = name.removeprefix("option ")
        return "" if text is None else Setting(options={option: _plain(text)})
    if section == "process":
        return _of_process(name, text, threads_differ)
    if name == "git commit":
        return "pytest-aorta bisect --commits looks through commits"
    return ""


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _variable(section: str, name: str, text: str | None) -> Setting | str:
    here = os.environ.get(name)
    if text is None:
        return Setting({name: None})
    if is_hidden(text):
        digests = other_variables(os.environ, ())
        is_ours = section.endswith(digests["of"]) and text.endswith(f":{digests['digests'].get(name)}")
        if here is None or not is_ours:
            return "value not recorded; pytest-aorta env --json --all records it"
        text = here
    if text == REDACTED:
        return "a secret"
    paths = [path for path in text.split(os.pathsep) if path.startswith("/")]
    if paths and not any(map(os.path.exists, paths)):
        return f"{paths[0]} is not on this machine"
    return Setting({name: text})


def _package(name: str, version: str | None) -> Setting | str:
    from importlib import metadata

    try:
        here = metadata.version(name)
    except metadata.PackageNotFoundError:
        here = None
    if version == here:
        return Setting()
    return Setting(package=f"{name}=={version}") if version else "it is installed here"


def _of_process(name: str, text: str | None, threads_differ: bool) -> Setting | str:
    if name == "CPUs allowed" and text is not None:
        allowed = sorted(os.sched_getaffinity(0))
        if int(text) > len(allowed):
            return f"{len(allowed)} are allowed here"
        return Setting(launcher=("taskset", "-c", ",".join(map(str, allowed[: int(text)]))))
    if name.startswith("limit ") and (limit := name.removeprefix("limit ")) in _LIMITS:
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{limit.upper()}"))[1]
        if hard != resource.RLIM_INFINITY and (text is None or int(text) > hard):
            return f"the hard limit here is {hard}"
        return Setting(launcher=("prlimit", f"--{limit}={'unlimited' if text is None else text}:"))
    if name == "nice" and text is not None:
        more = int(text) - os.nice(0)
        return Setting(launcher=("nice", "-n", str(more))) if more >= 0 or os.geteuid() == 0 else "only root may"
    if name == "scheduler policy" and text in _POLICIES:
        return Setting(launcher=("chrt", *_POLICIES[text]))
    if name == "torch threads" and text is not None and not threads_differ:
        return Setting({"OMP_NUM_THREADS": text})
    return ""


def listing(changes: Sequence[Change], rest: Sequence[str]) -> list[str]:
    """What differs: first what can be changed here."""
    lines = [f"{counted(len(changes) + len(rest), 'difference')}; {len(changes)} can be made here"]
    for title, texts in (("", [each.text for each in changes]), ("cannot be made here:", rest)):
        lines += [title] * bool(title and texts)
        lines += _indented(texts)
    return lines


def _indented(texts: Sequence[str]) -> list[str]:
    more = [f"  and {len(texts) - _LISTED} more"] * (len(texts) > _LISTED)
    return [*(f"  {text}" for text in texts[:_LISTED]), *more]


class Explain:
    """The search for the smallest set of differences that turns the fault on; see ``Minimize``, with ``turns_on``."""

    def __init__(self, request: ExplainRequest, most: int, most_in_all: int, at_once: int = 1) -> None:
        self._request = request
        self._texts = {each.name: each.text for each in request.changes}
        self._search = Minimize(
            tuple(self._texts), most, most_in_all, at_once, turns_on=True, signature=request.signature
        )

    @property
    def result(self) -> Minimized:
        return self._search.found

    def steps(self) -> Steps:
        return self._search.steps()

    def conclusion(self) -> tuple[bool, str]:
        found, rest = self.result, self._request.rest
        first = found.tried[0]
        good = f"{first.failures} of {first.trials} as on the good side"
        bad = f"{first.base_failures} of {first.base_trials} as on the bad side"
        if found.left is None:
            left = f"; {counted(len(rest), 'difference')} cannot be made here" if rest else ""
            if first.failures * first.base_trials > 2 * first.base_failures * first.trials:
                left = f"; are GOOD and BAD the wrong way round?{left}"
            if first.answer == "did not run" or not first.trials or not first.base_trials:
                return False, f"nothing to explain: no trial of one side came to its main work ({good}, {bad})"
            if first.failures and first.answer == "fails":
                return False, f"the differences do not make it fail here: {good}, {bad}{left}"
            return False, f"not shown that the differences make it fail here: {good}, {bad}{left}"
        names = part_name(found.left)
        if found.tried[-1].answer == "gone":
            return False, f"the fault went away: it fails no more as on the bad side. So far, {names} turns it on"
        if not found.is_complete:
            limit = " (--max-trials)" if found.is_at_limit else ""
            return False, f"not at its end{limit}: so far, {names} turns it on"
        if found.unsure:
            unsure = part_name(found.unsure)
            return False, f"{names} turns it on; not decided whether {unsure} is needed (--aorta-trials)"
        failures, trials = first.base_failures, first.base_trials
        if found.left != found.variables:
            failures, trials = found.last.failures, found.last.trials
        texts = [self._texts[name] for name in found.left]
        changed = " and ".join(texts) if len(texts) <= 3 else names
        does = "turns it on" if len(found.left) == 1 else "turn it on, together"
        return True, f"{changed} {does}: {failures} of {trials} failed with it, {good}"

    def report(self) -> SearchReport:
        found, rest = self.result, self._request.rest
        rows = rows_of(found, lambda each: part_name(each.variables) if each.variables else "none", _ANSWERS)
        notes = [f"at most {LEVEL:.0%}: the probability that any answer on a part is wrong"] * (found.left is not None)
        if rest:
            notes += ["cannot be made here:", *_indented(rest)]
        head = "as on the bad side", "failed", "with all", "p", "level", ""
        return SearchReport(*self.conclusion(), head, rows, tuple(notes))


#: Answers of ``Minimize`` on parts that ran beside what fails.
_ANSWERS = {
    "acts": "does not turn it on",
    "fails": "turns it on",
    "did not run": "did not run",
    "undecided": "undecided",
    "gone": "the fault went away",
}


def part_name(names: Sequence[str]) -> str:
    """``A B``, or ``A B and 17 more``."""
    return " ".join(names) if len(names) <= 3 else f"{' '.join(names[:2])} and {len(names) - 2} more"


def combined(
    changes: Iterable[Change], bad: Collection[str]
) -> tuple[dict[str, str], tuple[str, ...], list[str], dict[str, Any]]:
    """What a trial has where the differences ``bad`` are as on the bad side, and the others as on the good one.

    Returns:
        variables, words of a launcher prefix, requirements of packages, options of the workload.
    """
    variables: dict[str, str] = {}
    unset: list[str] = []
    words: list[str] = []
    packages: list[str] = []
    options: dict[str, Any] = {}
    for each in changes:
        setting = each.bad if each.name in bad else each.good
        variables |= {name: value for name, value in setting.variables.items() if value is not None}
        unset += [word for name, value in setting.variables.items() if value is None for word in ("-u", name)]
        words += setting.launcher
        packages += [setting.package] * bool(setting.package)
        options |= setting.options
    return variables, (*(["env", *unset] if unset else []), *words), packages, options
