"""``list`` and ``env``: registered names, and what a trial would record of this machine."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from pytest_aorta.cli.shared import columns, registry_option
from pytest_aorta.common.import_target import module_spec
from pytest_aorta.common.texts import one_line
from pytest_aorta.plan import option_text
from pytest_aorta.probe.variables import shown_value
from pytest_aorta.registry import Kind, Registry, RegistryError, WorkloadEntry, one_line_of
from pytest_aorta.settings import OPTION, RequestError

KINDS: tuple[Kind, ...] = ("workloads", "mitigations", "environments", "collectors")

#: The section with the options of one workload, listed on request only.
OPTIONS = "options"

Entry = dict[str, Any]
"""A name as plain data: ``source`` package, and what it stands for, or its ``problem``."""

#: Longest value in the table.
_LONGEST = 100

#: Seconds for the content of databases of kernels; what is read until then is kept for the next call.
_PATIENCE = 10.0


@click.command("list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar="[KIND]...")
@click.option(
    "--workload",
    metavar="NAME",
    help="List the options of this workload (a name, or FILE.py:CLASS), which is imported for that.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a list for each kind.")
@registry_option
def list_registered(kinds: tuple[Kind, ...], workload: str | None, files: tuple[str, ...], as_json: bool) -> None:
    """KIND is workloads, mitigations, environments or collectors; without it, all are listed. A name that cannot be
    loaded is listed with the reason. Only --workload imports a workload.
    """
    if workload is not None and kinds:
        raise click.UsageError(f"--workload lists the options of one workload, and no {', '.join(kinds)}")
    registry = Registry.load(list(map(Path, files)), tolerant=True)
    sections: dict[str, list[Entry]] = {}
    if workload is not None:
        sections[OPTIONS] = _options_of_workload(registry, workload)
    for kind in kinds or (KINDS if workload is None else ()):
        sections[kind] = [_entry(registry, kind, name) for name in registry.names(kind)]
    if as_json:
        click.echo(json.dumps(sections, indent=1))
    else:
        click.echo("\n\n".join(_section(kind, entries) for kind, entries in sections.items()))


def _entry(registry: Registry, kind: Kind, name: str) -> Entry:
    entry: Entry = {"name": name, "source": registry.source_package(kind, name), "problem": None}
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a plugin that prints while it is imported
            return entry | _facts(registry, kind, name)
    except Exception as error:
        return entry | {"problem": str(error) if isinstance(error, RegistryError) else one_line_of(error)}


def _facts(registry: Registry, kind: Kind, name: str) -> Entry:
    if kind == "collectors":
        from pytest_aorta.collectors.contract import collector_class
        from pytest_aorta.collectors.contract import one_line as summary_of

        target = registry.collector(name)
        collector = collector_class(target)
        options = {key: {"default": default, "help": help} for key, (default, help) in collector.options.items()}
        return {"target": target, "summary": summary_of(collector), "options": options}
    if kind == "mitigations":
        mitigation = registry.mitigation(name)
        given = {f"{OPTION}{key}": option_text(value) for key, value in mitigation.options.items()}
        return {"variables": _variables({**mitigation.env, **given}), "read_by": mitigation.read_by}
    if kind == "environments":
        environment = registry.environment(name)
        parts = {key: getattr(environment, key) for key in ("docker", "venv", "rocm", "launcher", "enter")}
        venv, problem = environment.venv, None
        if venv and not environment.enter and not Path(venv, "bin", "python").expanduser().exists():
            problem = f"there is no virtual environment in {venv}"
        return {
            "kind": environment.kind,
            **{key: list(value) if isinstance(value, tuple) else value for key, value in parts.items() if value},
            "variables": _variables(environment.env),
            "problem": problem,
        }
    target = registry.workload(name).target
    module, _, cls = target.rpartition(":")
    spec = module_spec(module)
    if spec is None:
        return {"target": target, "summary": "", "problem": f"there is no module {module}"}
    body: list[ast.stmt] = []
    if str(spec.origin).endswith(".py"):
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            body = ast.parse(Path(str(spec.origin)).read_bytes()).body
    classes = (node for node in body if isinstance(node, ast.ClassDef) and node.name == cls)
    summary = next((ast.get_docstring(node) or "" for node in classes), "").partition("\n")[0].replace("``", "")
    return {"target": target, "summary": summary}


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: shown_value(name, value) for name, value in variables.items()}


def _options_of_workload(registry: Registry, name: str) -> list[Entry]:
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


def _section(kind: str, entries: list[Entry]) -> str:
    lines = []
    for entry in entries if kind == OPTIONS else ():
        default = "" if entry["default"] is None else f" (default {entry['default']})"
        meaning = "; ".join(filter(None, (entry["help"], f"takes {entry['takes']}")))
        lines += [f"  {one_line(entry['name'] + default)}", f"      {one_line(meaning)}"]
    if kind != OPTIONS:
        lines = [f"  {line}" for line in columns([_row(entry) for entry in entries if not entry["problem"]])]
        for entry in (entry for entry in entries if entry["problem"]):
            [line] = columns([(entry["name"], entry["source"], f"broken: {entry['problem']}")])
            lines.append("  " + click.style(line, fg="red"))
    nothing = f"  (none is {'declared' if kind == OPTIONS else 'registered'})"
    return "\n".join([click.style(kind, bold=True), *(lines or [nothing])])


def _row(entry: Entry) -> Sequence[str]:
    if "target" in entry:
        return entry["name"], entry["source"], entry["target"], entry["summary"]
    parts = [f"{key}={entry[key]}" for key in ("docker", "venv", "rocm") if key in entry]
    parts += [f"launcher={' '.join(entry['launcher'])}"] if entry.get("launcher") else []
    parts += ["entered"] if entry.get("enter") else []
    parts += [f"{name}={value}" for name, value in entry["variables"].items()]
    nothing = "the Python of pytest" if entry.get("kind") == "local" else "no variables"
    read_by = f"read by {entry['read_by']}" if entry.get("read_by") else ""
    return entry["name"], entry["source"], " ".join(parts) or nothing, read_by


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, which --diff can read.")
@click.option(
    "--diff",
    "files",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A B",
    help="Compare two sides: trial files, results directories, or outputs of pytest-aorta env --json.",
)
@click.option("--all", "with_all", is_flag=True, help="Values of all variables, but for those that may be secrets.")
def env(as_json: bool, files: tuple[Path, Path] | None, with_all: bool) -> None:
    """Secrets are not shown. torch is not imported, so its versions of CUDA and NCCL, and its threads, are in trial
    files only. Builds and databases of kernels are those of the installed torch and ROCm, not of what a trial loads.
    --diff reads only the two sides.
    """
    if files is not None:
        _diff(*files, as_json=as_json)
        return
    from pytest_aorta.probe.collect import collect_env, collect_static
    from pytest_aorta.probe.environment_facts import INSTALLED, KERNELS, facts_of_section, sections
    from pytest_aorta.probe.guard import Guard
    from pytest_aorta.probe.kernels import installed_libraries, kernels
    from pytest_aorta.probe.software import package_list
    from pytest_aorta.probe.variables import DIGEST, values_to_share

    static = collect_static(Path.cwd())
    shared = values_to_share(os.environ) if with_all else ()
    guard = Guard()
    snapshot = {**collect_env(static, shared).to_dict(), INSTALLED: package_list(static.installed)}
    snapshot["end"] = {"kernels": kernels(installed_libraries(), guard, _PATIENCE)}
    snapshot["partial_reasons"] += guard.reasons
    if as_json:
        click.echo(json.dumps(snapshot, indent=1))
        return
    listed = [fact for name, content in sections(snapshot) for fact in facts_of_section(name, content).items()]
    for number, (section, facts) in enumerate(groupby(listed, key=lambda item: item[0].section)):
        if number:
            click.echo()
        click.echo(click.style(section, bold=True))
        rows = [(fact.name, value if isinstance(value, str) else " ".join(value)) for fact, value in sorted(facts)]
        if section == KERNELS:
            rows = [(name, text.removeprefix(DIGEST)) for name, text in rows]
        cut = [(name, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...") for name, text in rows]
        for line in columns(cut):
            click.echo(f"  {line}")
    for reason in snapshot["partial_reasons"]:
        click.echo(f"warning: could not be found out: {one_line(reason)}", err=True)


def _diff(a: Path, b: Path, *, as_json: bool) -> None:
    from pytest_aorta.triage.environments import differences
    from pytest_aorta.triage.reading import environments_of

    different = differences(environments_of(a), environments_of(b))
    if as_json:
        plain = [each.to_plain() for each in different]
        rows = [
            {"what": each["what"], "text": each["text"], "a": each["a"][0]["value"], "b": each["b"][0]["value"]}
            for each in plain
        ]
        click.echo(json.dumps({"a": str(a), "b": str(b), "differences": rows}, indent=1))
        return
    for each in different:
        click.echo(one_line(str(each)))
    if not different:
        click.echo("No difference in what is recorded of both.")
