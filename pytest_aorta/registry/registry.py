"""Names -> workloads, mitigations, environments and collectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

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
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Collectors that come with the package.
BUILTIN_COLLECTORS: Final = ("amd_log", "numerics", "rocprof")

_BUILT_IN: Final = f"{BUILTIN_SOURCE} (built in)"

T = TypeVar("T")


class Registry:
    """Everything that has a name, from the package itself, from installed plugins and from sidecar files.

    Names come from metadata. A plugin is imported when one of its mitigations or environments is asked for by name, so
    one that is broken, or slow to import, costs no other name anything; a workload's module is never imported here.
    Names are matched exactly, with their case.
    """

    def __init__(self, plugins: Mapping[str, Sequence[PluginEntry]], sidecars: Sequence[Sidecar]) -> None:
        self._workloads = Catalog(
            "workload", map(_workload, plugins[entrypoints.WORKLOADS]), unknown=UnknownWorkloadError
        )
        self._mitigations = Catalog(
            "mitigation",
            [
                *(
                    _ready(name, Mitigation(name, dict(env), BUILTIN_SOURCE), _BUILT_IN)
                    for name, env in BUILTIN_MITIGATIONS.items()
                ),
                *map(_plugin_mitigation, plugins[entrypoints.MITIGATIONS]),
                *(
                    _ready(mitigation.name, mitigation, sidecar.source)
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
                    _ready(environment.name, environment, sidecar.source)
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
                *(_ready(entry.name, entry.name, entry.source) for entry in plugins[entrypoints.COLLECTORS]),
            ],
            unknown=UnknownCollectorError,
        )

    @classmethod
    def load(cls, sidecars: Sequence[Path] = ()) -> Registry:
        """Read the metadata of what is installed, and the sidecar files. Imports no plugin.

        Raises:
            RegistryCollisionError: a name with two sources, or two sidecars of one name.
            RegistryError: a name that cannot be used, or a sidecar that cannot be read.
        """
        return cls(plugin_entries(), read_sidecars(sidecars))

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
        return [
            *self._workloads.problems(),
            *self._mitigations.problems(),
            *self._environments.problems(),
            *self._collectors.problems(),
        ]


def get_mitigation(name: str, sidecars: Sequence[Path] = ()) -> Mitigation:
    """Look one mitigation up in a freshly loaded registry."""
    return Registry.load(sidecars).mitigation(name)


def get_environment(name: str, sidecars: Sequence[Path] = ()) -> Environment:
    """Look one environment up in a freshly loaded registry."""
    return Registry.load(sidecars).environment(name)


def _ready(name: str, value: T, source: str) -> Offer[T]:
    return Offer(name, source, lambda: value)


def _workload(entry: PluginEntry) -> Offer[WorkloadEntry]:
    return Offer(entry.name, entry.source, lambda: WorkloadEntry(entry.name, entry.target(), entry.distribution))


def _plugin_mitigation(entry: PluginEntry) -> Offer[Mitigation]:
    def load() -> Mitigation:
        return mitigation_from(
            entry.payload(), name=entry.name, source_package=entry.distribution, where=_where("mitigation", entry)
        )

    return Offer(entry.name, entry.source, load)


def _plugin_environment(entry: PluginEntry) -> Offer[Environment]:
    def load() -> Environment:
        return environment_from(
            entry.payload(), name=entry.name, source_package=entry.distribution, where=_where("environment", entry)
        )

    return Offer(entry.name, entry.source, load)


def _where(kind: str, entry: PluginEntry) -> str:
    return f"{kind} {entry.name!r} of {entry.source}"
