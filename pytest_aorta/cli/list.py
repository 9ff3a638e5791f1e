"""``pytest-aorta list``: the names that a run may ask for, what they stand for, and which of them are broken."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.tables import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_aorta.registry import Registry

KINDS = ("workloads", "mitigations", "environments", "collectors")

#: Where pytest looks for registry files that the command line does not name.
_VARIABLE = "PYTEST_AORTA_REGISTRY_FILE"

#: One name: what it stands for, or its ``problem``.
Entry = dict[str, Any]


@click.command("list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar="[KIND]...")
@click.option(
    "--registry-file",
    "files",
    multiple=True,
    metavar="FILE",
    help=f"Registry file with more names, as pytest's --aorta-registry-file; repeat for several (or ${_VARIABLE}).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a list for each kind.")
def list_registered(kinds: tuple[str, ...], files: tuple[str, ...], as_json: bool) -> None:
    """Registered workloads, mitigations, environments and collectors.

    KIND limits the list to some of these. What cannot be loaded is shown with the reason. No workload is imported.
    """
    from pytest_aorta.registry import Registry

    files = files or tuple(filter(None, os.environ.get(_VARIABLE, "").split(";")))
    registry = Registry.load([Path(file) for file in files])
    found = {kind: registered(registry, kind) for kind in kinds or KINDS}
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo("\n\n".join(_section(kind, entries) for kind, entries in found.items()))


def registered(registry: Registry, kind: str) -> list[Entry]:
    """The names of one kind, sorted; ``problem`` is ``None`` for those that can be used."""
    from pytest_aorta.registry import RegistryError

    names, entry_of = _KINDS[kind]
    entries = []
    for name in names(registry):
        try:
            entries.append({"name": name, **entry_of(registry, name)})
        except RegistryError as error:
            entries.append({"name": name, "problem": str(error)})
    return entries


def _workload(registry: Registry, name: str) -> Entry:
    workload = registry.workload(name)
    module = workload.target.rpartition(":")[0]
    problem = None if _exists(module) else f"there is no module {module}"
    return {"target": workload.target, "source": workload.source_package, "problem": problem}


def _exists(module: str) -> bool:
    """Whether a module can be found; other than with ``importlib.util.find_spec``, its packages are not imported."""
    places: Sequence[str] | None = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        found = (finder.find_spec(".".join(parts[:end]), places) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return False
        places = spec.submodule_search_locations
        if places is None:
            return end == len(parts)
    return True


def _mitigation(registry: Registry, name: str) -> Entry:
    mitigation = registry.mitigation(name)
    return {"variables": _variables(mitigation.env), "source": mitigation.source_package, "problem": None}


def _environment(registry: Registry, name: str) -> Entry:
    environment = registry.environment(name)
    parts = {
        "docker": environment.docker,
        "venv": environment.venv,
        "rocm": environment.rocm,
        "launcher": list(environment.launcher),
        "enter": environment.enter,
    }
    problem = None
    if environment.venv and not environment.enter and not Path(environment.venv, "bin", "python").expanduser().exists():
        problem = f"there is no virtual environment in {environment.venv}"
    return {
        "kind": environment.kind,
        **{key: value for key, value in parts.items() if value},
        "variables": _variables(environment.env),
        "source": environment.source_package,
        "problem": problem,
    }


def _collector(registry: Registry, name: str) -> Entry:
    return {"name": registry.collector(name), "problem": None}


def _variables(variables: Any) -> dict[str, str]:
    from pytest_aorta.probe.variables import shown_value

    return {name: shown_value(name, value) for name, value in variables.items()}


_KINDS: dict[str, tuple[Callable[[Registry], list[str]], Callable[[Registry, str], Entry]]] = {
    "workloads": (lambda registry: registry.workload_names(), _workload),
    "mitigations": (lambda registry: registry.mitigation_names(), _mitigation),
    "environments": (lambda registry: registry.environment_names(), _environment),
    "collectors": (lambda registry: registry.collector_names(), _collector),
}


def _section(kind: str, entries: list[Entry]) -> str:
    """A heading, and one line for each name."""
    if not entries:
        return f"{click.style(kind, bold=True)}\n  (none is registered)"
    rows = [(entry["name"], entry.get("source", ""), _what(entry)) for entry in entries if not entry["problem"]]
    lines = [f"  {line}" for line in columns(rows)]
    for entry in entries:
        if entry["problem"]:
            lines.append("  " + click.style(columns([(entry["name"], f"broken: {entry['problem']}")])[0], fg="red"))
    return "\n".join([click.style(kind, bold=True), *lines])


def _what(entry: Entry) -> str:
    """What a name stands for, the longest part of its line and so the last one."""
    if "target" in entry:
        return str(entry["target"])
    parts = [f"{key}={entry[key]}" for key in ("docker", "venv", "rocm") if key in entry]
    if entry.get("launcher"):
        parts.append(f"launcher={' '.join(entry['launcher'])}")
    if entry.get("enter"):
        parts.append("entered")
    return " ".join([*parts, *(f"{name}={value}" for name, value in entry.get("variables", {}).items())])
