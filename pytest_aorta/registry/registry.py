"""Names -> workloads, mitigations, environments and collectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

from pytest_aorta.registry import entrypoints
from pytest_aorta.registry.builtin_environments import BUILTIN_ENVIRONMENTS
from pytest_aorta.registry.builtin_mitigations import BUILTIN_MITIGATIONS
from pytest_aorta.registry.catalog import Catalog, Offer
from pytest_aorta.registry.entrypoints import PluginEntry, plugin_entries
from pytest_aorta.registry.errors import (
    UnknownCollectorError,
    UnknownEnvironmentError,
    UnknownMitigationError,
    UnknownWorkloadError,
)
from pytest_aorta.registry.payloads import environment_from, mitigation_from
from pytest_aorta.registry.sidecar import Sidecar, read_sidecars
from pytest_aorta.registry.types import BUILTIN_SOURCE, Environment, Mitigation, WorkloadEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

#: Collectors that come with the package.
BUILTIN_COLLECTORS: Final = ("amd_log", "numerics", "rocprof")

#: What has names.
Kind = Literal["workloads", "mitigations", "environments", "collectors"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_BUILT_IN: Final = f"{BUILTIN_SOURCE} (built in)"

T = TypeVar("T")


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
        self._workloads = Catalog(
            "workload", map(_workload, plugins[entrypoints.WORKLOADS]), unknown=UnknownWorkloadError
        )
        self._mitigations = Catalog(
            "mitigation",
            [
                *(_ready(mitigation.name, mitigation, _BUILT_IN) for mitigation in BUILTIN_MITIGATIONS),
                *map(_plugin_mitigation, plugins[entrypoints.MITIGATIONS]),
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
                *map(_plugin_environment, plugins[entrypoints.ENVIRONMENTS]),
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
                *(
                    _ready(entry.name, entry.name, entry.source, entry.distribution)
                    for entry in plugins[entrypoints.COLLECTORS]
                ),
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


def _collector(entry: PluginEntry) -> Offer[str]:
    return _offer(entry, lambda: entry.name)


def _offer(entry: PluginEntry, load: Callable[[], T]) -> Offer[T]:
    return Offer(entry.name, entry.source, entry.distribution, load)
