"""A recipe as it is written: workspace, defaults and actions. Each key of an action may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pytest_aorta.workflow.finding import FILE_NAMES as FILE_NAMES
from pytest_aorta.workflow.groups import Group
from pytest_aorta.workflow.resources import Resources
from pytest_aorta.workflow.tables import NonNegativeNumber, Number, PositiveNumber, PositiveWhole, Table, WholeNumber


class WorkspaceTable(Table):
    """Where the directories are, and the JSON file in each that holds its value."""

    path: Path = Path("workspace")
    value_file: Path | None = None


class SubmitOptions(Table):
    """What jobs on one cluster need besides resources."""

    account: str | None = None
    setup: str | None = None
    custom: tuple[str, ...] = ()
    partition: str | None = None


class Distributed(Table):
    """Ranks of a workload's trials: the options ``--aorta-nproc``, ``--aorta-launcher`` and ``--aorta-elastic``."""

    nproc: PositiveWhole | None = None
    launcher: Literal["auto", "elastic", "torchrun", "external"] = "auto"
    elastic: Mapping[str, str | WholeNumber | Number] = Field(default_factory=dict)


class CommandTable(Table):
    """Keys of an action that runs a command on directories; ``each`` says on which, where they are those of trials."""

    command: str | None = None
    products: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    each: Literal["directory", "trial", "cell", "matrix"] = "directory"


class MatrixTable(Table):
    """Keys of an action that is a matrix of trials; they mean what the options of the same names do."""

    workload: str | None = None
    trials: PositiveWhole = 1
    environments: tuple[str, ...] = ("local",)
    mitigations: tuple[str | tuple[str, ...], ...] = ("none",)
    config: Mapping[str, Any] = Field(default_factory=dict)
    extra_env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    steps: PositiveWhole | None = None
    timeout: PositiveNumber | None = None
    stall_timeout: PositiveNumber | None = None
    seed: WholeNumber | None = None
    isolation: Literal["fork", "spawn", "none"] = "fork"
    collect: tuple[str, ...] = ()
    distributed: Distributed = Distributed()
    expect: Literal["pass", "fail"] = "pass"
    baseline: str | None = None
    margin: NonNegativeNumber | None = None
    until_decided: bool = False
    gate: tuple[str, ...] = ()


class ActionTable(CommandTable, MatrixTable):
    """An action as it is written: with ``workload`` a matrix of trials, with ``command`` one command per directory."""

    name: str | None = None
    from_: str | None = Field(default=None, alias="from")
    previous_actions: tuple[str, ...] = ()
    resources: Resources = Resources()
    group: Group = Group()
    submit_options: Mapping[str, SubmitOptions] = Field(default_factory=dict)


class DefaultTable(Table):
    """What all actions have in common, where they do not say otherwise."""

    action: ActionTable = ActionTable()


class RecipeTable(Table):
    """The whole file."""

    workspace: WorkspaceTable = WorkspaceTable()
    default: DefaultTable = DefaultTable()
    action: tuple[ActionTable, ...] = ()
