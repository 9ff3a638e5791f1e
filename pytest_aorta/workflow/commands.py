"""The command of an action: a template with placeholders, and the shell lines that it becomes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pytest_aorta.common.conditions import Json, check_pointer, element

#: ``{directory}``, ``{directories}``, ``{workspace_path}`` and JSON pointers; other braces are the shell's.
_PLACEHOLDER = re.compile(r"\{(directory|directories|workspace_path|/[^{}]*)\}")


def check_command(command: str) -> None:
    found = _PLACEHOLDER.findall(command)
    directory, directories = "directory" in found, "directories" in found
    if directory == directories:
        both = "both" if directory else "neither"
        hint = "" if directory else ", or trials = N to be run for its own sake"
        raise ValueError(
            f"the command {command!r} has {both} of {{directory}} and {{directories}}; it needs one of them{hint}"
        )
    for pointer in found:
        if pointer.startswith("/"):
            if directories:
                raise ValueError(
                    f"{{{pointer}}} is an element of one directory; it cannot be used with {{directories}}"
                )
            check_pointer(pointer)


def works_on_directories(command: str) -> bool:
    return _PLACEHOLDER.search(command) is not None


def takes_all(command: str) -> bool:
    return "{directories}" in command


def shell_commands(command: str, directories: Sequence[str], values: Sequence[Json], workspace: Path) -> list[str]:
    """The lines for a shell: one per directory, or one for all of them.

    Raises:
        RequestError: a directory's value lacks an element.
    """
    path = shlex.quote(str(workspace))
    if takes_all(command):
        return [_filled(command, {"directories": shlex.join(directories), "workspace_path": path})]
    lines = []
    for directory, value in zip(directories, values, strict=True):
        words = {"directory": shlex.quote(directory), "workspace_path": path}
        for name in _PLACEHOLDER.findall(command):
            if name.startswith("/"):
                found = element(value, name, directory)
                words[name] = shlex.quote(found if isinstance(found, str) else json.dumps(found))
        lines.append(_filled(command, words))
    return lines


def _filled(command: str, words: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: words[match[1]], command)
