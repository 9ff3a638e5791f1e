"""What differs between two requests, as text: why an earlier result does not stand for a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_aorta.probe.variables import DIGEST, REDACTED
from pytest_aorta.trials.conversion import canonical_json
from pytest_aorta.trials.fingerprint import IMPORTED_LATER, Parts

#: Longest value that is shown.
_LONGEST = 60

#: What is said of a request that an earlier version has recorded.
UNKNOWN = "recorded without the parts of its request"

#: Name to version of all installed distributions.
Versions = Mapping[str, str]


def differences(
    earlier: Parts, now: Parts, installed: Callable[[str], Versions | None] = lambda digest: None
) -> list[str]:
    """One line for each thing that has changed: ``OMP_NUM_THREADS 4 -> 1``, ``mymodule.py changed``.

    Values of variables are shown where they may be recorded of any environment.

    Args:
        earlier: parts of the request that a record is of.
        now: parts of the request that is to be carried out.
        installed: gives the list of distributions with a digest, where there is one.
    """
    if not earlier:
        return [UNKNOWN]
    found: list[str] = []
    for name in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(name), now.get(name)
        if before == after or name in (IMPORTED_LATER, "packages"):
            continue
        if name in ("sources", "data_files"):
            found += changed_files(before or {}, after or {})
        elif name in ("overlay", "variables"):
            found += _mapping(_variables(earlier), _variables(now), "", _variable)
        elif name in _MAPPINGS:
            found += _mapping(before or {}, after or {}, _MAPPINGS[name], _value)
        elif name in _BUILDS:
            found.append(_build(_BUILDS[name], str(before), str(after)))
        else:
            found.append(f"{_NAMES.get(name, name)} {_shown(before)} -> {_shown(after)}")
    if earlier.get("packages") != now.get("packages"):
        known = {line.partition(" ")[0] for line in found}
        lines = _packages(earlier.get("packages"), now.get("packages"), installed)
        found += [line for line in lines if line.partition(" ")[0] not in known]
    return list(dict.fromkeys(found))


#: Parts whose names say too little.
_NAMES = {"cpus": "number of CPUs", "nproc": "number of ranks", "trial": "trial index"}

#: Parts that begin with a version, which is all that is shown when it is another one.
_BUILDS = {"python": "Python", "torch": "torch"}

#: Parts that are mappings, and what stands before their names.
_MAPPINGS = {"config": "option ", "environment": "environment ", "elastic": "elastic ", "imposed": "imposed "}


def _variables(parts: Parts) -> dict[str, str]:
    return {**parts.get("variables", {}), **parts.get("overlay", {})}


def _variable(name: str, value: Any) -> str:
    if value is None:
        return "unset"
    return REDACTED if str(value).startswith(DIGEST) else str(value)


def _value(name: str, value: Any) -> str:
    return _shown(value)


def _mapping(
    before: Mapping[str, Any], after: Mapping[str, Any], what: str, shown: Callable[[str, Any], str]
) -> list[str]:
    found = []
    for name in dict.fromkeys([*after, *before]):
        if canonical_json(before.get(name)) != canonical_json(after.get(name)):  # a NaN equals a NaN
            one, two = shown(name, before.get(name)), shown(name, after.get(name))
            found.append(f"{what}{name} changed" if one == two else f"{what}{name} {one} -> {two}")
    return found


def changed_files(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line for each file whose digest is another one, that is new, or gone."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        one, two = before.get(path), after.get(path)
        if one != two:
            found.append(f"{path} {'is new' if one is None else 'is gone' if two is None else 'changed'}")
    return found


def _packages(before: Any, after: Any, installed: Callable[[str], Versions | None]) -> list[str]:
    one, two = (None if digest is None else installed(digest) for digest in (before, after))
    if one is None or two is None:
        return ["installed packages changed"]
    return [
        f"{name} {one.get(name, 'not installed')} -> {two.get(name, 'not installed')}"
        for name in sorted(one.keys() | two.keys())
        if one.get(name) != two.get(name)
    ]


def _build(what: str, before: str, after: str) -> str:
    one, two = (build.partition(" ")[0] for build in (before, after))
    return f"{what} {one} -> {two}" if one != two else f"{what} {one} built anew"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
