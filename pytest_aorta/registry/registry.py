"""Names -> workloads, mitigations, environments and collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, get_args

from pytest_aorta.registry.builtins import BUILTIN_ENVIRONMENTS, BUILTIN_MITIGATIONS
from pytest_aorta.registry.payloads import (
    PluginEntry,
    environment_from,
    mitigation_from,
    plugin_entries,
    read_sidecars,
    variable_from,
)
from pytest_aorta.registry.types import (
    BUILTIN_SOURCE,
    Environment,
    Mitigation,
    RegistryCollisionError,
    RegistryError,
    UnknownCollectorError,
    UnknownEnvironmentError,
    UnknownMitigationError,
    UnknownWorkloadError,
    WorkloadEntry,
    one_line_of,
)

#: Collectors that come with the package, and their classes.
BUILTIN_COLLECTORS: Final = {
    "amd_log": "pytest_aorta.collectors.tools:AmdLog",
    "divergence": "pytest_aorta.collectors.divergence:Divergence",
    "memory": "pytest_aorta.collectors.memory:Memory",
    "native": "pytest_aorta.collectors.native:Native",
    "nsys": "pytest_aorta.collectors.tools:Nsys",
    "numerics": "pytest_aorta.collectors.numerics:Numerics",
    "profile": "pytest_aorta.collectors.profile:Profile",
    "rocprof": "pytest_aorta.collectors.tools:Rocprof",
}

#: What has names; entry points are in the groups ``aorta.workloads``, ...
Kind = Literal["workloads", "mitigations", "environments", "collectors"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_UNKNOWN: Final[Mapping[Kind, type[RegistryError]]] = {
    "workloads": UnknownWorkloadError,
    "mitigations": UnknownMitigationError,
    "environments": UnknownEnvironmentError,
    "collectors": UnknownCollectorError,
}


@dataclass(frozen=True)
class Offer:
    kind: Kind
    name: str
    source: str
    source_package: str
    load: Callable[[], Any]
    #: Whether to load it imports nothing.
    is_read: bool = True


class Registry:
    """Everything that has a name, from the package itself, from installed plugins and from sidecar files.

    Names come from metadata. A plugin is imported when one of its mitigations or environments is asked for by name, so
    one that is broken, or slow to import, costs no other name anything; a workload's module is never imported here.
    Names are matched exactly, with their case.

    Raises:
        RegistryError: a name that cannot be used; not if ``tolerant``: then it is an error to ask for it.
        RegistryCollisionError: a name with two sources, likewise.
    """

    def __init__(self, offers: Iterable[Offer], *, tolerant: bool = False) -> None:
        self._offers: dict[Kind, dict[str, Offer]] = {kind: {} for kind in KINDS}
        for offer in offers:
            own = self._offers[offer.kind]
            other = own.setdefault(offer.name, offer)
            if offer.is_read and other.is_read and other is not offer and _same(offer, other):
                continue
            error = _unusable(offer) if other is offer else _collision(offer, other)
            if error is not None and not tolerant:
                raise error
            if error is not None:
                own[offer.name] = replace(other, load=partial(_raise, error))

    @classmethod
    def load(cls, sidecars: Sequence[Path] = (), *, tolerant: bool = False) -> Registry:
        """Read the metadata of what is installed, and the sidecar files. Imports no plugin.

        Raises:
            RegistryCollisionError: a name with two sources, or two sidecars of one name.
            RegistryError: a name that cannot be used, or a sidecar that cannot be read.
        """
        return cls([*_built_in(), *map(_of_plugin, plugin_entries(KINDS)), *_of_files(sidecars)], tolerant=tolerant)

    def adding(self, values: Iterable[Mitigation | Environment], source: str) -> Registry:
        """With more names, from a file."""
        return Registry(
            [*(offer for own in self._offers.values() for offer in own.values()), *_of_values(values, source)]
        )

    def workload(self, name: str) -> WorkloadEntry:
        """Where the workload is; its module is not imported."""
        found: WorkloadEntry = self._get("workloads", name)
        return found

    def mitigation(self, name: str) -> Mitigation:
        """The mitigation, or the variable ``NAME=VALUE``; at most the plugin that offers it is imported."""
        if "=" in name and name not in self._offers["mitigations"] and (inline := variable_from(name)) is not None:
            return inline
        found: Mitigation = self._get("mitigations", name)
        return found

    def environment(self, name: str) -> Environment:
        """The environment; of the plugins, at most the one that offers it is imported."""
        found: Environment = self._get("environments", name)
        return found

    def collector(self, name: str) -> str:
        """The class of the collector, as ``module:Class``; it is not imported."""
        found: str = self._get("collectors", name)
        return found

    def names(self, kind: Kind) -> list[str]:
        """Sorted; a name is here also when what it names cannot be loaded."""
        return sorted(self._offers[kind])

    def source_package(self, kind: Kind, name: str) -> str:
        """Where a name comes from that is known, whether or not it can be loaded; of two offers, the first."""
        return self._offers[kind][name].source_package

    def problems(self, kind: Kind | None = None) -> list[str]:
        """One line for every name that cannot be loaded.

        Imports the plugins of mitigations and environments, but no workload: of those, only the form of the target is
        checked.
        """
        lines = []
        for each in KINDS if kind is None else (kind,):
            for name in self.names(each):
                try:
                    _load(self._offers[each][name])
                except RegistryError as error:
                    lines.append(str(error))
        return lines

    def _get(self, kind: Kind, name: str) -> Any:
        offer = self._offers[kind].get(name)
        if offer is not None:
            return _load(offer)
        names = self.names(kind)
        message = f"unknown {kind[:-1]} {name!r}; available: {', '.join(names) or '(none is registered)'}"
        if suggestion := _closest(name, names):
            message += f"; did you mean {suggestion!r}?"
        if problems := self.problems(kind):  # the name may belong to a plugin that is broken
            message += "\nthese plugins could not be loaded:\n  " + "\n  ".join(problems)
        raise _UNKNOWN[kind](message)


def get_mitigation(name: str, sidecars: Sequence[Path] = ()) -> Mitigation:
    return Registry.load(sidecars).mitigation(name)


def get_environment(name: str, sidecars: Sequence[Path] = ()) -> Environment:
    return Registry.load(sidecars).environment(name)


def _load(offer: Offer) -> Any:
    try:
        return offer.load()
    except RegistryError:
        raise
    except Exception as error:
        message = f"the {offer.kind[:-1]} {offer.name!r} from {offer.source} cannot be read: {one_line_of(error)}"
        raise RegistryError(message) from error


def _same(offer: Offer, other: Offer) -> bool:
    try:
        one, two = offer.load(), other.load()
    except RegistryError:
        return False
    return bool(one == two if isinstance(one, str) else replace(one, source_package=two.source_package) == two)


def _unusable(offer: Offer) -> RegistryError | None:
    name = offer.name
    # "a,b" is a set of two mitigations on the command line, and "a+b" is the same set in the name of an item.
    separator = next((each for each in name if each in ",+"), None) if offer.kind == "mitigations" else None
    if not name:
        reason = "it is empty"
    elif not name.isprintable():
        reason = "it holds a control character, or one that cannot be seen"
    elif name != name.strip():
        reason = "it begins or ends with a space"
    elif separator is not None:
        reason = f"it holds {separator!r}, which separates names where several are given"
    else:
        return None
    return RegistryError(f"the {offer.kind[:-1]} name {name!r} from {offer.source} cannot be used: {reason}")


def _collision(offer: Offer, other: Offer) -> RegistryError:
    return RegistryCollisionError(
        f"the {offer.kind[:-1]} name {offer.name!r} is offered twice, by {other.source} and by {offer.source}; "
        "neither wins: rename or remove one of them"
    )


def _closest(name: str, names: Iterable[str]) -> str | None:
    import difflib  # only here: a typo is rare, and a child process never makes one

    # Names are case-sensitive; a suggestion helps after a wrong case.
    folded = {candidate.casefold(): candidate for candidate in names}
    matches = difflib.get_close_matches(str(name).casefold(), folded, n=1)
    return folded[matches[0]] if matches else None


def _raise(error: RegistryError) -> NoReturn:
    raise error


def _built_in() -> Iterator[Offer]:
    source = f"{BUILTIN_SOURCE} (built in)"
    found: list[tuple[Kind, str, Any]] = [("mitigations", each.name, each) for each in BUILTIN_MITIGATIONS]
    found += [("environments", each.name, each) for each in BUILTIN_ENVIRONMENTS]
    found += [("collectors", name, target) for name, target in BUILTIN_COLLECTORS.items()]
    for kind, name, value in found:
        yield Offer(kind, name, source, BUILTIN_SOURCE, lambda value=value: value)  # type: ignore[misc]


def _of_files(paths: Sequence[Path]) -> Iterator[Offer]:
    for path, value in read_sidecars(paths):
        yield from _of_values([value], f"the registry file {path}")


def _of_values(values: Iterable[Mitigation | Environment], source: str) -> Iterator[Offer]:
    for value in values:
        kind: Kind = "mitigations" if isinstance(value, Mitigation) else "environments"
        yield Offer(kind, value.name, source, value.source_package, lambda value=value: value)  # type: ignore[misc]


def _of_plugin(entry: PluginEntry) -> Offer:
    def load() -> Any:
        if entry.kind == "workloads":
            return WorkloadEntry(entry.name, entry.target(), entry.distribution)
        if entry.kind == "collectors":
            return entry.target()
        read = mitigation_from if entry.kind == "mitigations" else environment_from
        where = f"{entry.kind[:-1]} {entry.name!r} of {entry.source}"
        return read(entry.payload(), name=entry.name, source_package=entry.distribution, where=where)

    kind: Kind = entry.kind  # type: ignore[assignment]  # one of those that were asked for
    return Offer(kind, entry.name, entry.source, entry.distribution, load, is_read=False)
