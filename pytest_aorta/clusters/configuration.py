"""The clusters and launchers that are known: those of the project, then of the user, then built-in ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_aorta.clusters.built_in import CLUSTERS, LAUNCHERS
from pytest_aorta.clusters.tables import Cluster, ClustersTable, Launcher
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.lines import key_lines, line_of
from pytest_aorta.workflow.table_errors import describe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The launcher of clusters that a launcher says nothing of.
DEFAULT = "default"

#: Launcher to cluster to what it says there.
Launchers = Mapping[str, Mapping[str, Launcher]]

#: Of ``launchers.toml``.
_LaunchersTable = dict[str, dict[str, Launcher]]


@dataclass(frozen=True)
class Configuration:
    """All files that say something of clusters.

    Attributes:
        folders: that may have a ``clusters.toml`` and a ``launchers.toml``; the first that names something counts.
    """

    folders: Sequence[Path]

    @classmethod
    def of_project(cls, root: Path, environ: Mapping[str, str] = os.environ) -> Configuration:
        """That of a recipe's folder, with the user's."""
        return cls((root, user_folder(environ)))

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """In the order in which they are tried.

        Raises:
            RecipeError: a file cannot be read, or is not valid.
        """
        found: list[Cluster] = []
        for file, text in self._texts("clusters.toml", CLUSTERS):
            found += _validated(ClustersTable, file, text).cluster
        return tuple(found)

    @cached_property
    def launchers(self) -> Launchers:
        """All of them.

        Raises:
            RecipeError: a file cannot be read, is not valid, or has a launcher without ``default``.
        """
        found: dict[str, dict[str, Launcher]] = {}
        for file, text in reversed(self._texts("launchers.toml", LAUNCHERS)):
            for name, by_cluster in _validated(_LaunchersTable, file, text).items():
                found[name] = {**found.get(name, {}), **by_cluster}
                if DEFAULT not in found[name]:
                    missing = f"[{name}.{DEFAULT}]"
                    raise RecipeError(f"launcher {name!r} has no table {missing}, which other clusters use", file)
        return found

    def cluster(self, name: str | None, environ: Mapping[str, str] = os.environ) -> Cluster:
        """The cluster of this name; without one, the first that this host is recognised as.

        Raises:
            RecipeError: there is none.
        """
        if name is None:
            return next(cluster for cluster in self.clusters if cluster.identify.matches(environ))  # at least ``none``
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        known = ", ".join(dict.fromkeys(cluster.name for cluster in self.clusters))
        raise RecipeError(f"no cluster is called {name!r}; there are {known}. clusters.toml says more of them")

    def launchers_on(self, cluster: str) -> dict[str, Launcher]:
        """What each launcher says on a cluster."""
        return {name: by_cluster.get(cluster, by_cluster[DEFAULT]) for name, by_cluster in self.launchers.items()}

    def _texts(self, name: str, built_in: str) -> list[tuple[Path, str]]:
        found = []
        for folder in self.folders:
            file = folder / name
            try:
                found.append((file, file.read_text(encoding="utf-8")))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise RecipeError(f"cannot be read: {error}", file) from error
        return [*found, (Path("built-in"), built_in)]


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a user's ``clusters.toml`` is: ``~/.config/pytest-aorta``, or as ``XDG_CONFIG_HOME`` says."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", os.path.expanduser("~")), ".config")
    return Path(base) / "pytest-aorta"


def _validated(table: Any, file: Path, text: str) -> Any:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"is not valid TOML: {error}", file) from None
    try:
        return TypeAdapter(table).validate_python(content)
    except ValidationError as error:
        location, sentence = describe(error, content, table)
        raise RecipeError(sentence, file, line_of(key_lines(text), location)) from None
