"""A recipe file into a checked recipe; errors name the file and the line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_aorta.settings import TRIALS_UNTIL_DECIDED
from pytest_aorta.workflow.actions import Action, Recipe, check_actions
from pytest_aorta.workflow.commands import check_command
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.finding import find_recipe as find_recipe
from pytest_aorta.workflow.lines import Location, key_lines, line_of
from pytest_aorta.workflow.recipe import ActionTable, CommandTable, MatrixTable, RecipeTable
from pytest_aorta.workflow.table_errors import describe
from pytest_aorta.workflow.tables import completed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there


def read_recipe(file: Path) -> Recipe:
    """A recipe file, checked.

    Raises:
        RecipeError: it cannot be read, is not valid, or its actions do not fit together.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", file) from error
    return parse_recipe(text, file)


def parse_recipe(text: str, file: Path) -> Recipe:
    """The text of a recipe file, checked, see ``read_recipe``."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"is not valid TOML: {error}", file) from None
    lines = key_lines(text)
    try:
        table = RecipeTable.model_validate(content)
    except ValidationError as error:
        location, sentence = describe(error, content)
        raise RecipeError(sentence, file, line_of(lines, location)) from None
    actions = []
    for index, own in enumerate(table.action):
        at = _Place(file, lines, index)
        actions.append(_action(_with_templates(own, table, at), at))
    recipe = Recipe(file.absolute(), table.workspace, tuple(actions))
    check_actions(recipe)
    return recipe


@dataclass(frozen=True)
class _Place:
    """An action of a recipe file, for messages."""

    file: Path
    lines: Mapping[Location, int]
    index: int

    def line(self, key: str | None = None) -> int:
        """The line of one of its keys, or of its header."""
        location: Location = ("action", self.index)
        return line_of(self.lines, location if key is None else (*location, key))

    def error(self, message: str, key: str | None = None) -> RecipeError:
        """An error in this action."""
        return RecipeError(message, self.file, self.line(key))


def _with_templates(own: ActionTable, table: RecipeTable, at: _Place) -> ActionTable:
    """An action with what it leaves out: from the action that it names, then from the defaults."""
    if table.default.action.from_ is not None:
        raise RecipeError("default.action cannot have from", at.file, line_of(at.lines, ("default", "action", "from")))
    if own.from_ is not None:
        template = next((other for other in table.action if other.name == own.from_), None)
        if template is None:
            known = ", ".join(str(other.name) for other in table.action)
            raise at.error(f"from = {own.from_!r} names no action; there are {known}", "from")
        if template.from_ is not None:
            raise at.error(
                f"from = {own.from_!r} names an action that has from itself ({template.from_!r}); name that one", "from"
            )
        own = completed(own, template)
    return completed(own, table.default.action)


def _action(table: ActionTable, at: _Place) -> Action:
    """A completed action, checked by itself."""
    if table.name is None:
        raise at.error("an action has no name")
    if (table.command is None) == (table.workload is None):
        have = "neither" if table.command is None else "both"
        raise at.error(f"action {table.name!r} has {have} of command and workload; it needs one of them")
    kind, other = ("command", MatrixTable) if table.workload is None else ("workload", CommandTable)
    useless = sorted(table.model_fields_set & set(other.model_fields))
    if useless:
        raise at.error(f"action {table.name!r} has a {kind}, for which {', '.join(useless)} cannot act", useless[0])
    if table.command is not None:
        try:
            check_command(table.command)
        except ValueError as error:
            raise at.error(f"action {table.name!r}: {error}", "command") from None
    name = table.name
    if table.until_decided and "trials" not in table.model_fields_set:
        table = table.model_copy(update={"trials": TRIALS_UNTIL_DECIDED})
    return Action(name, table, at.line())
