"""``pytest-aorta show cluster`` and ``show launchers``: what is known of clusters, as TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.clusters.configuration import Configuration


@click.command("cluster")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All clusters, in the order in which they are tried.")
@click.option("--short", is_flag=True, help="Names only, one a line.")
def show_cluster(name: str | None, everything: bool, short: bool) -> None:
    """The cluster that this host is part of, or that of this name, as clusters.toml has it."""
    configuration = _configuration()
    found = configuration.clusters if everything else (configuration.cluster(name),)
    for cluster in found:
        if short:
            click.echo(cluster.name)
        else:
            click.echo("\n".join(_table("cluster", cluster.model_dump(exclude_defaults=True, mode="json"))) + "\n")


@click.command("launchers")
@click.argument("cluster", required=False)
@click.option("--all", "everything", is_flag=True, help="For all clusters.")
@click.option("--short", is_flag=True, help="Names only, one a line.")
def show_launchers(cluster: str | None, everything: bool, short: bool) -> None:
    """What commands begin with on this cluster, or that of this name, as launchers.toml has it."""
    configuration = _configuration()
    where = configuration.cluster(cluster).name
    for name, by_cluster in sorted(configuration.launchers.items()):
        chosen = {where: configuration.launchers_on(where)[name]} if not everything else by_cluster
        if short:
            click.echo(name)
            continue
        for each, launcher in chosen.items():
            click.echo(f"[{name}.{each}]")
            click.echo("\n".join(_values(launcher.model_dump(exclude_none=True))) + "\n")


def _configuration() -> Configuration:
    """Of the recipe around the working directory, or else of the user."""
    from pytest_aorta.clusters.configuration import Configuration
    from pytest_aorta.workflow.finding import find_recipe

    try:
        root = find_recipe(Path.cwd()).parent
    except RequestError:
        root = Path.cwd()
    return Configuration.of_project(root)


def _table(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """An element of an array of tables, with those in it."""
    yield f"[[{name}]]"
    plain = {key: value for key, value in content.items() if not _is_tables(value)}
    yield from _values(plain)
    for key, value in content.items():
        for each in value if _is_tables(value) else ():
            yield from _table(f"{name}.{key}", each)


def _values(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{key}.")
        elif value is not None:
            # What JSON and TOML have in common: texts of printable characters, numbers, true and false, arrays.
            yield f"{prefix}{key} = {json.dumps(value, ensure_ascii=False)}"


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
