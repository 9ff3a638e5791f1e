"""``pytest-aorta env``: what a trial would record of this machine, and what differs between two such records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import columns
from pytest_aorta.common.texts import one_line
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.triage.environments import Environments

#: Key of the list of all installed distributions, beside the sections of a snapshot.
_INSTALLED = "installed"

#: Longest value in the table.
_LONGEST = 100


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; without --diff, it can be given to --diff.")
@click.option(
    "--diff",
    "files",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A B",
    help="What differs between two files, each a trial file or one of pytest-aorta env --json.",
)
def env(as_json: bool, files: tuple[Path, Path] | None) -> None:
    """What pytest-aorta records of this machine and this Python, with names and values as people call them.

    With --diff, nothing is looked at but the files. Secrets are not shown. torch is not imported: what it only says of
    itself in a trial (CUDA of torch, NCCL, threads) is in trial files.
    """
    if files is not None:
        _diff(*files, as_json=as_json)
        return
    from pytest_aorta.probe.collect import collect_env, collect_static
    from pytest_aorta.probe.software import package_list

    static = collect_static(Path.cwd())
    snapshot = {**collect_env(static).to_dict(), _INSTALLED: package_list(static.installed)}
    if as_json:
        click.echo(json.dumps(snapshot, indent=1))
        return
    _echo_table(snapshot)
    for reason in snapshot["partial_reasons"]:
        click.echo(f"warning: could not be found out: {one_line(reason)}", err=True)


def _echo_table(snapshot: Mapping[str, Any]) -> None:
    from pytest_aorta.probe.environment_facts import facts_of_section, sections

    found = [fact for name, content in sections(snapshot) for fact in facts_of_section(name, content).items()]
    for number, (section, facts) in enumerate(groupby(found, key=lambda item: item[0].section)):
        if number:
            click.echo()
        click.echo(click.style(section, bold=True))
        rows = [(fact.name, value if isinstance(value, str) else " ".join(value)) for fact, value in sorted(facts)]
        for line in columns([(name, _cut(value)) for name, value in rows]):
            click.echo(f"  {line}")


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."


def _diff(a: Path, b: Path, *, as_json: bool) -> None:
    from pytest_aorta.triage.environments import differences

    found = differences(_read(a), _read(b))
    if as_json:
        rows = [
            {"what": plain["what"], "text": plain["text"], "a": plain["a"][0]["value"], "b": plain["b"][0]["value"]}
            for plain in (each.to_plain() for each in found)
        ]
        click.echo(json.dumps({"a": str(a), "b": str(b), "differences": rows}, indent=1))
        return
    for each in found:
        click.echo(one_line(str(each)))
    if not found:
        click.echo("No difference in what is recorded of both.")


def _read(file: Path) -> Environments:
    from pytest_aorta.triage.environments import Environments
    from pytest_aorta.triage.reading import Results

    expected = "expected a trial file, or one that pytest-aorta env --json has written"
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}; {expected}") from None
    except (ValueError, RecursionError):
        raise RequestError(f"{file} is not valid JSON; {expected}") from None
    content = content if isinstance(content, dict) else {}
    if isinstance(content.get("env"), dict):
        environments = Environments(Results(file).installed)
        environments.add(content)
    elif isinstance(content.get("host"), dict) and "captured_at" in content:
        listed = content.get(_INSTALLED) or {}
        environments = Environments(lambda digest: listed["versions"] if listed.get("digest") == digest else None)
        environments.add({"env": content})
    else:
        raise RequestError(f"{file} has no environment; {expected}")
    return environments
