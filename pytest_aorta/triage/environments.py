"""Environments of trials, and differences between two sets of them: torch 2.12.0 -> 2.13.0."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from pytest_aorta.probe.environment_facts import (
    FILES,
    KERNELS,
    PACKAGES,
    RULES,
    VERSIONS,
    Fact,
    Value,
    clause,
    facts_of_section,
    is_complete,
    is_hidden,
    sections,
)
from pytest_aorta.probe.variables import DIGEST, REDACTED
from pytest_aorta.trials.records import canonical_json
from pytest_aorta.trials.spec import IMPORTED_LATER

#: Looks up the distributions with a digest, name to version; ``None`` if their list is not known.
Installed = Callable[[str], Mapping[str, str] | None]

#: Number of trials by value of a fact; ``None`` for trials without it.
Counts = Counter[Value | None]

#: Sections that are not in a record's snapshot of its environment, and their order behind it.
OPTIONS, _RUN, _DEVICES = "options", "run", "devices"
_AFTER = {FILES: 0, IMPORTED_LATER: 0, OPTIONS: 1, _RUN: 2, _DEVICES: 2}
_AFTER = {section: len(RULES) + place for section, place in _AFTER.items()}

#: Sections: packages that every record names; all installed ones, if their list is known; the digest of that list.
PACKAGES_SECTION, _INSTALLED, _DIGEST = "packages", "installed", "digest of packages"


class Environments:
    """The environments of a set of trials.

    Most sections of a record equal those of other trials, so they are counted as texts and parsed once.
    """

    def __init__(self, installed: Installed = lambda digest: None) -> None:
        self._installed = installed
        #: By section: contents, as JSON with whether they are complete, and the number of trials with each.
        self._contents: dict[str, Counter[str]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the record of a trial; what it has not recorded counts as unknown."""
        env, parts = _mapping(record.get("env")), _mapping(record.get("fingerprint_parts"))
        place, request, beside, imposed = (
            _mapping(record.get(name)) for name in ("execution_env", "request", "side_by_side", "imposed")
        )
        reasons: list[Any] = []
        for each in (env, _mapping(env.get("end"))):
            found = each.get("partial_reasons")
            reasons += found if isinstance(found, list) else []
        for name, content in sections(env):
            complete = is_complete(name, reasons) and name != KERNELS
            if name == "env_vars":
                digests = {**_mapping(parts.get("variables")), **_mapping(parts.get("overlay"))}
                secrets = {name: digests.get(name) for name, value in content.items() if value == REDACTED}
                known = {name: digest for name, digest in secrets.items() if str(digest).startswith(DIGEST)}
                content = {**content, **known}
                # Without a process, no variable is known.
                complete = complete and bool(env.get("process"))
            self._count(name, content, complete)
            if name == PACKAGES_SECTION and isinstance(digest := content.get("digest"), str):
                self._count(_DIGEST, {"digest": digest}, False)
                if versions := self._installed(digest):
                    self._count(_INSTALLED, {"versions": versions}, True)
        if parts and record.get("request_fingerprint", "") is not None:  # else its workload was not examined
            files = {**_mapping(parts.get("sources")), **_mapping(parts.get("data_files"))}
            later = _mapping(parts.get(IMPORTED_LATER))  # a failed trial may have imported less
            for section, found, complete in ((FILES, files, True), (IMPORTED_LATER, later, False)):
                digests = {name: f"{DIGEST}{digest}" for name, digest in found.items() if digest is not None}
                self._count(section, digests, complete)
        if "config" in record:
            options = {f"option {name}": _text(value) for name, value in _mapping(record["config"]).items()}
            self._count(OPTIONS, options, True)
        at_a_time = [beside.get(name) for name in ("slots", "workers", "hosts")]
        numbers = [number for number in at_a_time if isinstance(number, int)]
        run = {
            "digest of the image": place.get("digest"),
            "entered with": place.get("entered_with"),
            "isolation": request.get("isolation"),
            "launcher": request.get("launcher"),
            "ranks": parts.get("nproc"),
            "threads imposed by the run": imposed.get("threads"),
            "trials at a time": prod(numbers) if len(numbers) == len(at_a_time) else None,
        }
        self._count(_RUN, {name: _text(value) for name, value in run.items() if value is not None}, bool(request))
        self._count(_DEVICES, _of_devices(_mapping(record.get("health"))), False)

    def update(self, others: Environments) -> None:
        """Add the trials of ``others``."""
        for section, contents in others._contents.items():
            self._contents.setdefault(section, Counter()).update(contents)

    def facts(self) -> dict[Fact, Counts]:
        """All facts with their values; trials that recorded the section without the fact have ``None``."""
        values: dict[Fact, Counts] = {}
        for section, contents in self._contents.items():
            read = [(*_parse_facts(section, text), trials) for text, trials in contents.items()]
            for fact in {fact for facts, _, _ in read for fact in facts}:
                counts = values[fact] = Counter()
                for facts, complete, trials in read:
                    if fact in facts or complete:
                        counts[facts.get(fact)] += trials
        return values

    def has_no(self, fact: Fact) -> Counts:
        """Number of trials that recorded the section of a fact that no trial has."""
        contents = self._contents.get(fact.section, Counter()).items()
        complete = sum(trials for text, trials in contents if _parse_facts(fact.section, text)[1])
        return Counter({None: complete} if complete else {})

    def _count(self, section: str, content: Mapping[str, Any], complete: bool) -> None:
        self._contents.setdefault(section, Counter())[json.dumps([content, complete], sort_keys=True)] += 1


@lru_cache(maxsize=10_000)
def _parse_facts(section: str, text: str) -> tuple[Mapping[Fact, Value], bool]:
    content, complete = json.loads(text)
    if section in _AFTER:
        return {Fact(_AFTER[section], name, section): value for name, value in content.items()}, complete
    if section == _DIGEST:
        return {PACKAGES._replace(section=_DIGEST): content["digest"]}, complete
    facts = facts_of_section(PACKAGES_SECTION if section == _INSTALLED else section, content)
    return {fact._replace(section=section): value for fact, value in facts.items()}, complete


def _of_devices(health: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a trial's devices that decide their speed."""
    found: dict[str, dict[str, str]] = {"ECC of GPUs": {}, "power cap of GPUs": {}, "partition of GPUs": {}}
    for name, part in _mapping(health.get("devices")).items():
        facts, gauges = _mapping(part.get("facts")), _mapping(part.get("gauges"))
        if "ecc" in facts:
            found["ECC of GPUs"][name] = facts["ecc"]
        if "partition" in facts:
            found["partition of GPUs"][name] = facts["partition"]
        if "power_cap_w" in gauges:
            found["power cap of GPUs"][name] = f"{gauges['power_cap_w'][1]:.0f} W"
    return {what: " and ".join(sorted(set(values.values()))) for what, values in found.items() if values}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Difference:
    """A fact with other values on the other side.

    ``before``, ``after``: values with their numbers of trials, the most frequent first; ``None`` for no value.
    ``same_versions``: of kernels, where no version differs that is known.
    """

    fact: Fact
    before: tuple[tuple[Value | None, int], ...]
    after: tuple[tuple[Value | None, int], ...]
    same_versions: bool = False

    def __str__(self) -> str:
        if self.same_versions:
            return f"same versions, different {self.fact.name}"
        return clause(self.fact, self.before, self.after)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal changes, whatever the number of trials."""
        return self.fact, frozenset(value for value, _ in self.before), frozenset(value for value, _ in self.after)

    def to_plain(self) -> dict[str, Any]:
        """JSON data: ``what``, ``text``, and the values of both sides with their numbers of trials."""
        return {
            "what": self.fact.name,
            "text": str(self),
            "a": [{"value": _json_value(value), "trials": trials} for value, trials in self.before],
            "b": [{"value": _json_value(value), "trials": trials} for value, trials in self.after],
        }


def differences(a: Environments, b: Environments) -> list[Difference]:
    """Differences between two sets of trials, the most important first.

    A fact differs if a side has a value that the other side does not have. Facts unknown on either side are left out,
    and so are facts that another difference explains: with torch, its commit changes too.
    """
    differing = []
    before, after = a.facts(), b.facts()
    known = before.keys() | after.keys()
    for fact in sorted(known):
        of_record = fact._replace(section=PACKAGES_SECTION) if fact.section in (_INSTALLED, _DIGEST) else fact
        if fact.section == _INSTALLED and of_record in known:
            continue
        one = before[fact] if fact in before else a.has_no(fact)
        two = after[fact] if fact in after else b.has_no(fact)
        if one and two and one.keys() != two.keys():
            differing.append(Difference(of_record, _by_frequency(one), _by_frequency(two)))
    if any(each.fact.section == PACKAGES_SECTION and each.fact != PACKAGES for each in differing):
        differing = [each for each in differing if each.fact != PACKAGES]
    names = {each.fact.name for each in differing}
    differing = [each for each in differing if each.fact.implied_by not in names]
    if not any(each.fact.section in VERSIONS for each in differing):
        differing = [replace(each, same_versions=each.fact.section == KERNELS) for each in differing]
    return differing


def _by_frequency(counts: Counts) -> tuple[tuple[Value | None, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def _json_value(value: Value | None) -> Any:
    if is_hidden(value):
        return None
    return list(value) if isinstance(value, tuple) else value
