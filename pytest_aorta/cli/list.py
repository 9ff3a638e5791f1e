"""``pytest-aorta list``: the names that a run may ask for, what they stand for, and which of them are broken."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import columns, registry_files, registry_option
from pytest_aorta.common.import_target import module_spec
from pytest_aorta.common.texts import one_line
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from pytest_aorta.registry import Kind, Registry

KINDS = ("workloads", "mitigations", "environments", "collectors")

#: Of one workload, which are listed only if they are asked for.
OPTIONS = "options"

Entry = dict[str, Any]
"""A name as plain data: ``source`` package, and what it stands for, or its ``problem``."""


@click.command("list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar="[KIND]...")
@click.option(
    "--workload",
    metavar="NAME",
    help="The options of this workload, by name or as FILE.py:CLASS; it is imported for that.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a list for each kind.")
@registry_option
def list_registered(kinds: tuple[str, ...], workload: str | None, files: tuple[str, ...], as_json: bool) -> None:
    """Registered workloads, mitigations, environments and collectors.

    KIND limits the list to some of these: workloads, mitigations, environments, collectors. What cannot be loaded is
    shown with the reason. Only --workload imports a workload.
    """
    from pytest_aorta.registry import Registry

    if workload is not None and kinds:
        raise click.UsageError(f"--workload lists the options of one workload, and no {', '.join(kinds)}")
    registry = Registry.load([Path(file) for file in registry_files(files)], tolerant=True)
    found: dict[str, list[Entry]] = {}
    if workload is not None:
        found[OPTIONS] = _options_of_workload(registry, workload)
    for kind in kinds or (KINDS if workload is None else ()):
        found[kind] = _registered(registry, kind)  # type: ignore[arg-type]  # click has checked it
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        click.echo("\n\n".join(_section(kind, entries) for kind, entries in found.items()))


# Registered names


def _registered(registry: Registry, kind: Kind) -> list[Entry]:
    from pytest_aorta.registry import RegistryError, one_line_of

    entries = []
    for name in registry.names(kind):
        entry: Entry = {"name": name, "source": registry.source_package(kind, name), "problem": None}
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a plugin that prints while it is imported
                entry |= _ENTRIES[kind](registry, name)
        except RegistryError as error:
            entry["problem"] = str(error)
        except Exception as error:
            entry["problem"] = one_line_of(error)
        entries.append(entry)
    return entries


def _workload(registry: Registry, name: str) -> Entry:
    target = registry.workload(name).target
    module, _, cls = target.rpartition(":")
    spec = module_spec(module)
    problem = None if spec is not None else f"there is no module {module}"
    return {"target": target, "summary": "" if spec is None else _summary(spec, cls), "problem": problem}


def _summary(spec: ModuleSpec, cls: str) -> str:
    if not str(spec.origin).endswith(".py"):
        return ""
    try:
        module = ast.parse(Path(str(spec.origin)).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            return (ast.get_docstring(node) or "").partition("\n")[0].replace("``", "")
    return ""


def _mitigation(registry: Registry, name: str) -> Entry:
    from pytest_aorta.plan import option_text
    from pytest_aorta.settings import OPTION

    mitigation = registry.mitigation(name)
    options = {f"{OPTION}{key}": option_text(value) for key, value in mitigation.options.items()}
    return {"variables": _variables({**mitigation.env, **options}), "read_by": mitigation.read_by}


def _environment(registry: Registry, name: str) -> Entry:
    environment = registry.environment(name)
    parts = {key: getattr(environment, key) for key in ("docker", "venv", "rocm", "launcher", "enter")}
    problem = None
    if environment.venv and not environment.enter and not Path(environment.venv, "bin", "python").expanduser().exists():
        problem = f"there is no virtual environment in {environment.venv}"
    return {
        "kind": environment.kind,
        **{key: list(value) if isinstance(value, tuple) else value for key, value in parts.items() if value},
        "variables": _variables(environment.env),
        "problem": problem,
    }


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    from pytest_aorta.probe.variables import shown_value

    return {name: shown_value(name, value) for name, value in variables.items()}


def _collector(registry: Registry, name: str) -> Entry:
    from pytest_aorta.collectors.contract import collector_class, one_line

    target = registry.collector(name)
    cls = collector_class(target)
    options = {key: {"default": default, "help": help} for key, (default, help) in cls.options.items()}
    return {"target": target, "summary": one_line(cls), "options": options}


_ENTRIES: dict[Kind, Callable[[Registry, str], Entry]] = {
    "workloads": _workload,
    "mitigations": _mitigation,
    "environments": _environment,
    "collectors": _collector,
}


# Options


def _options_of_workload(registry: Registry, name: str) -> list[Entry]:
    from pytest_aorta.registry import WorkloadEntry, one_line_of
    from pytest_aorta.trials.loading import declared_options, load_class

    if name.endswith(".py"):
        raise RequestError(f"--workload {name}: expected a registered name, or a file and a class, as in {name}:CLASS")
    file, _, cls = name.rpartition(":")
    if file.endswith(".py"):
        entry = WorkloadEntry(cls, f"{Path(file).absolute()}:{cls}", f"file:{Path(file).name}")
    else:
        entry = registry.workload(name)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            declared = declared_options(load_class(entry.target))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may call sys.exit()
        raise RequestError(f"the workload {name} cannot be imported: {one_line_of(error)}") from error
    return [{"source": entry.source_package, **vars(option)} for option in declared]


# As text


def _section(kind: str, entries: list[Entry]) -> str:
    if not entries:
        lines = ["  (none is declared)" if kind == OPTIONS else "  (none is registered)"]
    elif kind == OPTIONS:
        lines = [line for entry in entries for line in _option(entry)]
    else:
        lines = [f"  {line}" for line in columns([_row(entry) for entry in entries if not entry.get("problem")])]
        for entry in entries:
            if entry.get("problem"):
                [line] = columns([(entry["name"], entry["source"], f"broken: {entry['problem']}")])
                lines.append("  " + click.style(line, fg="red"))
    return "\n".join([click.style(kind, bold=True), *lines])


def _row(entry: Entry) -> Sequence[str]:
    if "target" in entry:
        return entry["name"], entry["source"], entry["target"], entry["summary"]
    parts = [f"{key}={entry[key]}" for key in ("docker", "venv", "rocm") if key in entry]
    if entry.get("launcher"):
        parts.append(f"launcher={' '.join(entry['launcher'])}")
    if entry.get("enter"):
        parts.append("entered")
    parts += [f"{name}={value}" for name, value in entry.get("variables", {}).items()]
    read_by = entry.get("read_by")
    nothing = "the Python of pytest" if entry.get("kind") == "local" else "no variables" if "variables" in entry else ""
    return entry["name"], entry["source"], " ".join(parts) or nothing, f"read by {read_by}" if read_by else ""


def _option(entry: Entry) -> list[str]:
    default = "" if entry["default"] is None else f"(default {entry['default']})"
    meaning = "; ".join(filter(None, (entry["help"], f"takes {entry['takes']}")))
    return [f"  {one_line(entry['name'] + ' ' + default)}", f"      {one_line(meaning)}"]
