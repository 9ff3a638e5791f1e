"""What differs between a trial and its replay, as text: ``torch 2.12.0 -> 2.13.0``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.environment_facts import PACKAGES, Fact, Value, clause, facts_of_section, is_complete, sections
from pytest_aorta.trials.fingerprint import IMPORTED_LATER, Parts, parts_of
from pytest_aorta.trials.place_variables import NAMES
from pytest_aorta.trials.request_differences import changed_files, differences

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult

#: Sections of a snapshot that are compared: not those that depend on slots, or on how far the trial came.
_SECTIONS = ("accelerator", "torch", "packages", "python", "env_vars", "host", "runtime_context", "compilers", "git")

#: Parts of the fingerprint that records have nowhere else.
_PARTS = ("sources", "data_files", "config", "imposed", "cpus", "nproc")

#: Variables that a launcher sets anew for every trial.
_OF_A_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")

#: Longest value that is shown.
_LONGEST = 60


def changes(then: TrialResult, now: TrialResult) -> list[str]:
    """One line for each thing that is another one: host, interpreter, packages, code, variables, seeds."""
    lines = list(_request(then, now))
    if then.env.get("python") and now.env.get("python"):  # else one of them did not get as far as its snapshot
        lines += _snapshot(then.env, now.env, {*_OF_A_LAUNCH, *NAMES, *_overlay(then), *_overlay(now)})
    lines += [*_seeds(then, now), *_parts(parts_of(then), parts_of(now))]
    if then.request_fingerprint and now.request_fingerprint and then.request_fingerprint != now.request_fingerprint:
        lines.append("the fingerprint of the request")
    return list(dict.fromkeys(lines))


def _request(then: TrialResult, now: TrialResult) -> Iterator[str]:
    yield from _one("host", then.host, now.host)
    if then.request is not None and now.request is not None:
        yield from _one("interpreter", then.request.interpreter, now.request.interpreter)
        yield from _one("working directory", then.request.cwd, now.request.cwd)
        yield from _each(then.request.ambient, now.request.ambient)


def _snapshot(then: Mapping[str, Any], now: Mapping[str, Any], ignored: set[str]) -> Iterator[str]:
    """What is known of both."""
    before, after = _facts(then), _facts(now)
    found: dict[Fact, tuple[Value | None, Value | None]] = {}
    for section in before.keys() & after.keys():
        (one, all_of_one), (two, all_of_two) = before[section], after[section]
        for fact in one.keys() | two.keys():
            known = (fact in one or all_of_one) and (fact in two or all_of_two)
            if known and one.get(fact) != two.get(fact) and fact.name not in ignored:
                found[fact] = one.get(fact), two.get(fact)
    digests = [(env.get("packages") or {}).get("digest") for env in (then, now)]
    if digests[0] != digests[1] and None not in digests and not any(fact.section == "packages" for fact in found):
        found[PACKAGES] = digests[0], digests[1]
    names = {fact.name for fact in found}
    for fact, (value, other) in sorted(found.items()):
        if fact.implied_by not in names:
            yield clause(fact, [(value, 1)], [(other, 1)])


def _facts(env: Mapping[str, Any]) -> dict[str, tuple[Mapping[Fact, Value], bool]]:
    """Of each section that is compared the facts, and whether what is not among them does not exist."""
    reasons = env.get("partial_reasons") or []
    return {
        name: (facts_of_section(name, content), is_complete(name, reasons))
        for name, content in sections(env)
        if name in _SECTIONS
    }


def _parts(then: Parts, now: Parts) -> Iterator[str]:
    """What the fingerprint is made of besides."""
    if then and now:
        before, after = then.get(IMPORTED_LATER, {}), now.get(IMPORTED_LATER, {})
        both = before.keys() & after.keys()  # one of them may have ended before an import
        yield from changed_files({path: before[path] for path in both}, {path: after[path] for path in both})
        yield from differences({"": "", **_some(then)}, {"": "", **_some(now)})


def _some(parts: Parts) -> Parts:
    return {name: parts[name] for name in _PARTS if name in parts}


def _seeds(then: TrialResult, now: TrialResult) -> Iterator[str]:
    """Of the process, or of each rank."""
    if then.seeds is None and not any(rank.seeds for rank in then.ranks):
        if then.env.get("python"):  # else it had not come to them
            yield "seeds: there are none in the record"
        return
    pairs = [("seeds", then.seeds, now.seeds)]
    others = {rank.rank: rank.seeds for rank in now.ranks}
    pairs += [(f"seeds of rank {rank.rank}", rank.seeds, others.get(rank.rank)) for rank in then.ranks]
    for what, one, two in pairs:
        if one is not None and two is not None and one != two:
            same = one.seed == two.seed
            yield f"{what} {one.seed} -> {two.seed}" if not same else f"{what}: other generators were seeded"


def _overlay(record: TrialResult) -> Mapping[str, Any]:
    return {} if record.request is None else {**record.request.ambient, **record.request.overlay}


def _each(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> Iterator[str]:
    for name in sorted(then.keys() & now.keys()):
        yield from _one(name, then[name], now[name], nothing="unset")


def _one(what: str, then: Any, now: Any, nothing: str = "none") -> Iterator[str]:
    if then != now:
        yield f"{what} {_shown(then, nothing)} -> {_shown(now, nothing)}"


def _shown(value: Any, nothing: str) -> str:
    text = nothing if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
