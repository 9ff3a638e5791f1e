"""What installed distributions offer, read from their metadata alone: a name costs no import."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Final

from pytest_aorta.registry.errors import RegistryError, one_line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKLOADS: Final = "aorta.workloads"
MITIGATIONS: Final = "aorta.mitigations"
ENVIRONMENTS: Final = "aorta.environments"
COLLECTORS: Final = "aorta.collectors"

_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?\Z")


@dataclass(frozen=True)
class PluginEntry:
    """One line of a distribution's ``entry_points.txt``.

    Attributes:
        group: one of the constants above.
        name: what users type.
        value: what it points to, as written.
        distribution: name of the distribution, as its metadata spell it.
    """

    group: str
    name: str
    value: str
    distribution: str
    _entry_point: metadata.EntryPoint = field(repr=False, compare=False)

    @property
    def source(self) -> str:
        """The distribution and the value, as messages name them."""
        return f"distribution {self.distribution!r} ({self.value})"

    def target(self) -> str:
        """``module:attribute``; ``RegistryError`` when the value is not of that form. Imports nothing."""
        match = _VALUE.match(self.value)
        if match is None or not match["attribute"]:
            raise RegistryError(
                f"entry point {self.name!r} of group {self.group!r} in {self.source} does not have the form "
                "module:attribute"
            )
        return f"{match['module']}:{match['attribute']}"

    def payload(self) -> object:
        """Import what the entry points to.

        Raises:
            RegistryError: whatever the import raised, with the entry and the distribution named.
        """
        self.target()
        try:
            payload: object = self._entry_point.load()
        except KeyboardInterrupt:
            raise
        # Not only Exception: a module that calls sys.exit() or pytest.skip() while it is imported must not end the run.
        except BaseException as error:
            raise RegistryError(
                f"entry point {self.name!r} of group {self.group!r} in {self.source} cannot be loaded: "
                f"{one_line_of(error)}"
            ) from error
        return payload


def plugin_entries() -> dict[str, list[PluginEntry]]:
    """Group -> entries, in the order of ``sys.path``; a distribution that is found twice there counts once."""
    # One call for all groups: each call reads the metadata of everything that is installed.
    everything = metadata.entry_points()
    return {
        group: list(_without_shadowed(everything.select(group=group), group))
        for group in (WORKLOADS, MITIGATIONS, ENVIRONMENTS, COLLECTORS)
    }


def _without_shadowed(entry_points: metadata.EntryPoints, group: str) -> Iterator[PluginEntry]:
    # importlib.metadata drops shadowed distributions itself, but compares their names as spelled in the names of their
    # folders: Python 3.10 takes Foo.egg-info (an editable install) and foo-1.0.dist-info for two.
    first: dict[str, object] = {}
    seen: set[tuple[str, str, str]] = set()
    for entry_point in entry_points:
        name = _distribution_name(entry_point)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if first.setdefault(key, entry_point.dist) is not entry_point.dist:
            continue
        identity = (key, entry_point.name, entry_point.value)
        if identity in seen:
            continue
        seen.add(identity)
        yield PluginEntry(group, entry_point.name, entry_point.value, name, entry_point)


def _distribution_name(entry_point: metadata.EntryPoint) -> str:
    with suppress(Exception):  # a folder without a METADATA file: what happens depends on the Python version
        if entry_point.dist is not None and "Name" in (fields := entry_point.dist.metadata):
            return fields["Name"]
    return f"(without metadata: {entry_point.value})"
