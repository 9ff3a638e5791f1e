"""``pytest-aorta list``: the names that a run may ask for, what they stand for, and which of them are broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.tables import columns
from pytest_aorta.common.terminal_text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Kinds of names, and the options, which are listed only if they are asked for.
KINDS = ("workloads", "mitigations", "environments", "collectors")
OPTIONS = "options"

#: Where pytest looks for registry files that the command line does not name.
_VARIABLE = "PYTEST_AORTA_REGISTRY_FILE"


@click.command("list")
@click.argument("kinds", nargs=-1, type=click.Choice((*KINDS, OPTIONS)), metavar="[KIND]...")
@click.option(
    "--workload",
    metavar="NAME",
    help="The options of this workload, by name or as FILE.py:CLASS; it is imported for that.",
)
@click.option(
    "--registry-file",
    "files",
    multiple=True,
    metavar="FILE",
    help=f"Registry file with more names, as pytest's --aorta-registry-file; repeat for several (or ${_VARIABLE}).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a list for each kind.")
def list_registered(kinds: tuple[str, ...], workload: str | None, files: tuple[str, ...], as_json: bool) -> None:
    """Registered workloads, mitigations, environments and collectors, and the options of pytest.

    KIND limits the list to some of these: workloads, mitigations, environments, collectors, options; the last ones are
    listed only if they are named. What cannot be loaded is shown with the reason. Only --workload imports a workload.
    """
    from pytest_aorta.cli.listed_names import registered
    from pytest_aorta.cli.listed_options import options_of_pytest, options_of_workload
    from pytest_aorta.registry import Registry

    if workload is not None and set(kinds) - {OPTIONS}:
        raise click.UsageError(f"--workload lists the options of one workload, and no {', '.join(kinds)}")
    files = files or tuple(filter(None, os.environ.get(_VARIABLE, "").split(";")))
    registry = Registry.load([Path(file) for file in files], tolerant=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds or (KINDS if workload is None else (OPTIONS,)):
        if kind != OPTIONS:
            found[kind] = registered(registry, kind)  # type: ignore[arg-type]  # click has checked it
        elif workload is not None:
            found[kind] = options_of_workload(registry, workload)
        else:
            found[kind] = options_of_pytest()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo("\n\n".join(_section(kind, entries) for kind, entries in found.items()))


def _section(kind: str, entries: list[dict[str, Any]]) -> str:
    """A heading, and one line for each name."""
    if not entries:
        none = "none is declared" if kind == OPTIONS else "none is registered"
        return f"{click.style(kind, bold=True)}\n  ({none})"
    if kind == OPTIONS:
        return "\n".join([click.style(kind, bold=True), *(line for entry in entries for line in _option(entry))])
    lines = [f"  {line}" for line in columns([_row(entry) for entry in entries if not entry.get("problem")])]
    for entry in entries:
        if entry.get("problem"):
            row = (entry["name"], entry["source"], f"broken: {entry['problem']}")
            lines.append("  " + click.style(columns([row])[0], fg="red"))
    return "\n".join([click.style(kind, bold=True), *lines])


def _row(entry: dict[str, Any]) -> Sequence[str]:
    """What a name stands for, the longest part of its line last."""
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


def _option(entry: dict[str, Any]) -> list[str]:
    """What an option is called, and below that what it means and takes."""
    default = "" if entry["default"] is None else f"(default {entry['default']})"
    name = " ".join(filter(None, (entry["name"], entry.get("metavar"), default)))
    meaning = "; ".join(filter(None, (entry["help"], f"takes {entry['takes']}")))
    return [f"  {one_line(name)}", f"      {one_line(meaning)}"]
