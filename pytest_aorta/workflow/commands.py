"""The command of an action with its placeholders, and what it takes the place of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pytest_aorta.workflow.values import Json, check_pointer, element

#: ``{directory}``, ``{directories}``, ``{workspace_path}`` and JSON pointers; other braces are the shell's.
_PLACEHOLDER = re.compile(r"\{(directory|directories|workspace_path|/[^{}]*)\}")


def check_command(command: str) -> str:
    """A command template, unchanged.

    Raises:
        ValueError: it has not exactly one of ``{directory}`` and ``{directories}``, or a placeholder that is not valid.
    """
    found = _PLACEHOLDER.findall(command)
    directory, directories = "directory" in found, "directories" in found
    if directory == directories:
        both = "both" if directory else "neither"
        raise ValueError(
            f"the command {command!r} has {both} of {{directory}} and {{directories}}; it needs one of them"
        )
    for pointer in found:
        if pointer.startswith("/"):
            if directories:
                raise ValueError(
                    f"{{{pointer}}} is an element of one directory; it cannot be used with {{directories}}"
                )
            check_pointer(pointer)
    return command


def takes_all(command: str) -> bool:
    """Whether a command takes all directories of a group at once."""
    return "{directories}" in command


def shell_commands(command: str, directories: Sequence[str], values: Sequence[Json], workspace: Path) -> list[str]:
    """The lines for a shell: one per directory, or one for all of them.

    Args:
        command: a template that ``check_command`` has let pass.
        directories: names in the workspace.
        values: of the directories.
        workspace: path that the command gets.

    Raises:
        RecipeError: a directory's value lacks an element.
    """
    if takes_all(command):
        return [
            _filled(command, {"directories": shlex.join(directories), "workspace_path": shlex.quote(str(workspace))})
        ]
    return [_of_one(command, name, value, workspace) for name, value in zip(directories, values, strict=True)]


def _of_one(command: str, directory: str, value: Json, workspace: Path) -> str:
    words = {"directory": shlex.quote(directory), "workspace_path": shlex.quote(str(workspace))}
    for name in _PLACEHOLDER.findall(command):
        if name.startswith("/"):
            words[name] = shlex.quote(_text(element(value, name, directory)))
    return _filled(command, words)


def _filled(command: str, words: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: words[match[1]], command)


def _text(found: Json) -> str:
    """A text as it is, anything else as JSON."""
    return found if isinstance(found, str) else json.dumps(found)
