"""What trials ran in, and what differs between the environments of two sets of them: torch 2.12.0 -> 2.13.0."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from pytest_aorta.probe.environment_facts import (
    FILES,
    PACKAGES,
    RULES,
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

#: Gives the list of distributions with a digest, name to version, where there is one.
Installed = Callable[[str], Mapping[str, str] | None]

#: In how many trials a fact has each value; ``None`` is for those that do not have it.
Counts = Counter[Value | None]

#: What records have besides their snapshots, in order of importance: it comes after all of those.
_OPTIONS, _RUN = "options", "run"
_AFTER = {FILES: len(RULES), IMPORTED_LATER: len(RULES), _OPTIONS: len(RULES) + 1, _RUN: len(RULES) + 2}

#: The packages that every record names; all of them, where their list is at hand; and the digest of that list.
_PACKAGES, _INSTALLED, _DIGEST = "packages", "installed", "digest of packages"


class Environments:
    """What a set of trials ran in.

    Most sections of a record are equal to those of other trials: they are counted as texts, and looked at once.
    ``installed`` gives the list of distributions with a digest, where there is one.
    """

    def __init__(self, installed: Installed = lambda digest: None) -> None:
        self._installed = installed
        #: Of each section its contents, as JSON with whether they are complete, and how many trials have each.
        self._contents: dict[str, Counter[str]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a trial, by the content of its file. What it has not recorded counts for nothing."""
        env, parts = _mapping(record.get("env")), _mapping(record.get("fingerprint_parts"))
        place, request, beside, imposed = (
            _mapping(record.get(name)) for name in ("execution_env", "request", "side_by_side", "imposed")
        )
        reasons: list[Any] = []
        for each in (env, _mapping(env.get("end"))):
            found = each.get("partial_reasons")
            reasons += found if isinstance(found, list) else []
        for name, content in sections(env):
            complete = is_complete(name, reasons)
            if name == "env_vars":
                digests = {**_mapping(parts.get("variables")), **_mapping(parts.get("overlay"))}
                secrets = {name: digests.get(name) for name, value in content.items() if value == REDACTED}
                known = {name: digest for name, digest in secrets.items() if str(digest).startswith(DIGEST)}
                content = {**content, **known}
                # Of a trial that did not get as far as its process, no variable is known.
                complete = complete and bool(env.get("process"))
            self._count(name, content, complete)
            if name == _PACKAGES and isinstance(digest := content.get("digest"), str):
                self._count(_DIGEST, {"digest": digest}, False)
                if versions := self._installed(digest):
                    self._count(_INSTALLED, {"versions": versions}, True)
        if parts and record.get("request_fingerprint", "") is not None:  # else its workload was not looked at
            files = {**_mapping(parts.get("sources")), **_mapping(parts.get("data_files"))}
            later = _mapping(parts.get(IMPORTED_LATER))  # what a trial that failed may not have done
            for section, found, complete in ((FILES, files, True), (IMPORTED_LATER, later, False)):
                digests = {name: f"{DIGEST}{digest}" for name, digest in found.items() if digest is not None}
                self._count(section, digests, complete)
        if "config" in record:
            options = {f"option {name}": _text(value) for name, value in _mapping(record["config"]).items()}
            self._count(_OPTIONS, options, True)
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

    def update(self, others: Environments) -> None:
        """Count the trials of others, too."""
        for section, contents in others._contents.items():
            self._contents.setdefault(section, Counter()).update(contents)

    def facts(self) -> dict[Fact, Counts]:
        """All facts with their values; trials that would have recorded one, and did not, have ``None``."""
        found: dict[Fact, Counts] = {}
        for section, contents in self._contents.items():
            read = [(*_parse_facts(section, text), trials) for text, trials in contents.items()]
            for fact in {fact for facts, _, _ in read for fact in facts}:
                counts = found[fact] = Counter()
                for facts, complete, trials in read:
                    if fact in facts or complete:
                        counts[facts.get(fact)] += trials
        return found

    def has_no(self, fact: Fact) -> Counts:
        """How many trials would have recorded a fact that none has."""
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
    facts = facts_of_section(_PACKAGES if section == _INSTALLED else section, content)
    return {fact._replace(section=section): value for fact, value in facts.items()}, complete


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Difference:
    """A fact that has other values on the other side.

    Attributes:
        fact: which.
        before, after: values and how many trials have them, the most frequent first; ``None`` is for those without.
    """

    fact: Fact
    before: tuple[tuple[Value | None, int], ...]
    after: tuple[tuple[Value | None, int], ...]

    def __str__(self) -> str:
        return clause(self.fact, self.before, self.after)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same change, in however many trials."""
        return self.fact, frozenset(value for value, _ in self.before), frozenset(value for value, _ in self.after)

    def to_plain(self) -> dict[str, Any]:
        """``what``, ``text``, and of both sides the values with their numbers of trials, as JSON data."""
        return {
            "what": self.fact.name,
            "text": str(self),
            "a": [{"value": _json_value(value), "trials": trials} for value, trials in self.before],
            "b": [{"value": _json_value(value), "trials": trials} for value, trials in self.after],
        }


def differences(a: Environments, b: Environments) -> list[Difference]:
    """What differs between two sets of trials, the most important first.

    A fact differs when the trials of one side have a value that no trial of the other side has. What is not known of
    either side is left out, and so is what another difference explains: with torch, its commit changes too.
    """
    found = []
    before, after = a.facts(), b.facts()
    known = before.keys() | after.keys()
    for fact in sorted(known):
        of_record = fact._replace(section=_PACKAGES) if fact.section in (_INSTALLED, _DIGEST) else fact
        if fact.section == _INSTALLED and of_record in known:
            continue
        one = before[fact] if fact in before else a.has_no(fact)
        two = after[fact] if fact in after else b.has_no(fact)
        if one and two and one.keys() != two.keys():
            found.append(Difference(of_record, _by_frequency(one), _by_frequency(two)))
    if any(each.fact.section == _PACKAGES and each.fact != PACKAGES for each in found):
        found = [each for each in found if each.fact != PACKAGES]
    names = {each.fact.name for each in found}
    return [each for each in found if each.fact.implied_by not in names]


def _by_frequency(counts: Counts) -> tuple[tuple[Value | None, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def _json_value(value: Value | None) -> Any:
    if is_hidden(value):
        return None
    return list(value) if isinstance(value, tuple) else value
