"""Names -> workloads, mitigations, environments and collectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypeVar, get_args

from pytest_aorta.registry.builtins import BUILTIN_ENVIRONMENTS, BUILTIN_MITIGATIONS
from pytest_aorta.registry.payloads import (
    COLLECTORS,
    ENVIRONMENTS,
    MITIGATIONS,
    WORKLOADS,
    PluginEntry,
    Sidecar,
    environment_from,
    mitigation_from,
    plugin_entries,
    read_sidecars,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


T = TypeVar("T")


@dataclass(frozen=True)
class Offer(Generic[T]):
    name: str
    source: str
    source_package: str
    load: Callable[[], T]


class Catalog(Generic[T]):
    def __init__(
        self,
        kind: str,
        offers: Iterable[Offer[T]],
        *,
        unknown: type[RegistryError],
        separators: str = "",
    ) -> None:
        self._kind = kind
        self._unknown = unknown
        self.refused: list[RegistryError] = []
        self._offers: dict[str, Offer[T]] = {}
        for offer in offers:
            error = self._unusable(offer, separators)
            other = self._offers.setdefault(offer.name, offer)
            if other is not offer:
                error = RegistryCollisionError(
                    f"the {kind} name {offer.name!r} is offered twice, by {other.source} and by {offer.source}; "
                    "neither wins: rename or remove one of them"
                )
            if error is not None:
                self.refused.append(error)
                self._offers[offer.name] = replace(other, load=partial(_raise, error))

    def source_package(self, name: str) -> str:
        """Where a known name comes from, also when it cannot be loaded; of a name with two offers, the first."""
        return self._offers[name].source_package

    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self._offers)

    def get(self, name: str) -> T:
        """Load what ``name`` names, and nothing else."""
        offer = self._offers.get(name)
        if offer is None:
            raise self._unknown(self._unknown_message(name))
        return self._load(offer)

    def _load(self, offer: Offer[T]) -> T:
        try:
            return offer.load()
        except RegistryError:
            raise
        except Exception as error:
            raise RegistryError(
                f"the {self._kind} {offer.name!r} from {offer.source} cannot be read: {one_line_of(error)}"
            ) from error

    def problems(self) -> list[str]:
        """One line for every offer that cannot be loaded. Loads all of them."""
        lines = []
        for name in self.names():
            try:
                self._load(self._offers[name])
            except RegistryError as error:
                lines.append(str(error))
        return lines

    def _unusable(self, offer: Offer[T], separators: str) -> RegistryError | None:
        name = offer.name
        separator = next((character for character in name if character in separators), None)
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
        return RegistryError(f"the {self._kind} name {name!r} from {offer.source} cannot be used: {reason}")

    def _unknown_message(self, name: str) -> str:
        message = f"unknown {self._kind} {name!r}; available: {', '.join(self.names()) or '(none is registered)'}"
        if suggestion := self._closest(name):
            message += f"; did you mean {suggestion!r}?"
        # The name may belong to a plugin that is broken.
        if problems := self.problems():
            message += "\nthese plugins could not be loaded:\n  " + "\n  ".join(problems)
        return message

    def _closest(self, name: str) -> str | None:
        import difflib  # only here: a typo is rare, and a child process never makes one

        # Names are case-sensitive; a suggestion helps after a wrong case.
        folded = {candidate.casefold(): candidate for candidate in self.names()}
        matches = difflib.get_close_matches(str(name).casefold(), folded, n=1)
        return folded[matches[0]] if matches else None


def _raise(error: RegistryError) -> NoReturn:
    raise error


#: Collectors that come with the package.
BUILTIN_COLLECTORS: Final = ("amd_log", "numerics", "rocprof")

#: What has names.
Kind = Literal["workloads", "mitigations", "environments", "collectors"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_BUILT_IN: Final = f"{BUILTIN_SOURCE} (built in)"


class Registry:
    """Everything that has a name, from the package itself, from installed plugins and from sidecar files.

    Names come from metadata. A plugin is imported when one of its mitigations or environments is asked for by name, so
    one that is broken, or slow to import, costs no other name anything; a workload's module is never imported here.
    Names are matched exactly, with their case.

    Raises:
        RegistryError: a name that cannot be used; not if ``tolerant``: then it is an error to ask for it.
        RegistryCollisionError: a name with two sources, likewise.
    """

    def __init__(
        self, plugins: Mapping[str, Sequence[PluginEntry]], sidecars: Sequence[Sidecar], *, tolerant: bool = False
    ) -> None:
        self._workloads = Catalog("workload", map(_workload, plugins[WORKLOADS]), unknown=UnknownWorkloadError)
        self._mitigations = Catalog(
            "mitigation",
            [
                *(_ready(mitigation.name, mitigation, _BUILT_IN) for mitigation in BUILTIN_MITIGATIONS),
                *map(_plugin_mitigation, plugins[MITIGATIONS]),
                *(
                    _ready(mitigation.name, mitigation, sidecar.source, mitigation.source_package)
                    for sidecar in sidecars
                    for mitigation in sidecar.mitigations
                ),
            ],
            unknown=UnknownMitigationError,
            # "a,b" is a set of two on the command line, and "a+b" is the same set in the name of an item.
            separators=",+",
        )
        self._environments = Catalog(
            "environment",
            [
                *(_ready(environment.name, environment, _BUILT_IN) for environment in BUILTIN_ENVIRONMENTS),
                *map(_plugin_environment, plugins[ENVIRONMENTS]),
                *(
                    _ready(environment.name, environment, sidecar.source, environment.source_package)
                    for sidecar in sidecars
                    for environment in sidecar.environments
                ),
            ],
            unknown=UnknownEnvironmentError,
        )
        self._collectors = Catalog(
            "collector",
            [
                *(_ready(name, name, _BUILT_IN) for name in BUILTIN_COLLECTORS),
                *(_ready(entry.name, entry.name, entry.source, entry.distribution) for entry in plugins[COLLECTORS]),
            ],
            unknown=UnknownCollectorError,
        )
        self._all: tuple[Catalog[Any], ...] = (self._workloads, self._mitigations, self._environments, self._collectors)
        if not tolerant:
            for error in (error for catalog in self._all for error in catalog.refused):
                raise error

    @classmethod
    def load(cls, sidecars: Sequence[Path] = (), *, tolerant: bool = False) -> Registry:
        """Read the metadata of what is installed, and the sidecar files. Imports no plugin.

        Raises:
            RegistryCollisionError: a name with two sources, or two sidecars of one name.
            RegistryError: a name that cannot be used, or a sidecar that cannot be read.
        """
        return cls(plugin_entries(), read_sidecars(sidecars), tolerant=tolerant)

    def workload(self, name: str) -> WorkloadEntry:
        """Where the workload is; its module is not imported."""
        return self._workloads.get(name)

    def mitigation(self, name: str) -> Mitigation:
        """The mitigation; of the plugins, at most the one that offers it is imported."""
        return self._mitigations.get(name)

    def environment(self, name: str) -> Environment:
        """The environment; of the plugins, at most the one that offers it is imported."""
        return self._environments.get(name)

    def collector(self, name: str) -> str:
        """``name``, if there is such a collector."""
        return self._collectors.get(name)

    def source_package(self, kind: Kind, name: str) -> str:
        """Where a name comes from that is known, whether or not it can be loaded."""
        catalogs: dict[Kind, Catalog[Any]] = dict(zip(KINDS, self._all, strict=True))
        return catalogs[kind].source_package(name)

    def workload_names(self) -> list[str]:
        """Sorted; a name is here also when its module cannot be imported."""
        return self._workloads.names()

    def mitigation_names(self) -> list[str]:
        """Sorted; a name is here also when its plugin cannot be loaded."""
        return self._mitigations.names()

    def environment_names(self) -> list[str]:
        """Sorted; a name is here also when its plugin cannot be loaded."""
        return self._environments.names()

    def collector_names(self) -> list[str]:
        """Sorted."""
        return self._collectors.names()

    def problems(self) -> list[str]:
        """One line for every plugin payload that cannot be loaded.

        Imports the plugins of mitigations and environments, but no workload: of those, only the form of the target is
        checked.
        """
        return [problem for catalog in self._all for problem in catalog.problems()]


def get_mitigation(name: str, sidecars: Sequence[Path] = ()) -> Mitigation:
    """Look one mitigation up in a freshly loaded registry."""
    return Registry.load(sidecars).mitigation(name)


def get_environment(name: str, sidecars: Sequence[Path] = ()) -> Environment:
    """Look one environment up in a freshly loaded registry."""
    return Registry.load(sidecars).environment(name)


def _ready(name: str, value: T, source: str, source_package: str = BUILTIN_SOURCE) -> Offer[T]:
    return Offer(name, source, source_package, lambda: value)


def _workload(entry: PluginEntry) -> Offer[WorkloadEntry]:
    return _offer(entry, lambda: WorkloadEntry(entry.name, entry.target(), entry.distribution))


def _plugin_mitigation(entry: PluginEntry) -> Offer[Mitigation]:
    where = f"mitigation {entry.name!r} of {entry.source}"
    return _offer(
        entry,
        lambda: mitigation_from(entry.payload(), name=entry.name, source_package=entry.distribution, where=where),
    )


def _plugin_environment(entry: PluginEntry) -> Offer[Environment]:
    where = f"environment {entry.name!r} of {entry.source}"
    return _offer(
        entry,
        lambda: environment_from(entry.payload(), name=entry.name, source_package=entry.distribution, where=where),
    )


def _offer(entry: PluginEntry, load: Callable[[], T]) -> Offer[T]:
    return Offer(entry.name, entry.source, entry.distribution, load)
