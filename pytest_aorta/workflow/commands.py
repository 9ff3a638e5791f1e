"""The command of an action: a template with placeholders, and the shell lines that it becomes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pytest_aorta.common.conditions import Json, check_pointer, element

#: By ``each``: what stands for the folder of one unit, and for those of all units of a group.
_FOLDERS = {
    "directory": ("directory", "directories"),
    "trial": ("trial_folder", "trial_folders"),
    "cell": ("cell_folder", "cell_folders"),
    "matrix": ("results_folder", "results_folders"),
}
_ONE, _ALL = zip(*_FOLDERS.values(), strict=True)

#: Folders, ``{workspace_path}`` and JSON pointers; other braces are the shell's.
_PLACEHOLDER = re.compile(rf"\{{({'|'.join([*_ONE, *_ALL])}|workspace_path|/[^{{}}]*)\}}")


def check_command(command: str, each: str = "directory") -> None:
    found = _PLACEHOLDER.findall(command)
    one, all_of_them = _FOLDERS[each]
    for wrong in {*_ONE, *_ALL} - {one, all_of_them}:
        if wrong in found:
            kind = next(kind for kind, names in _FOLDERS.items() if wrong in names)
            raise ValueError(
                f"the command {command!r} has {{{wrong}}}, which is for each = {kind!r}; for each = {each!r}, {{{one}}}"
            )
    if (one in found) == (all_of_them in found):
        both = "both" if one in found else "neither"
        hint = "" if one in found else ", or trials = N to be run for its own sake"
        raise ValueError(
            f"the command {command!r} has {both} of {{{one}}} and {{{all_of_them}}}; it needs one of them{hint}"
        )
    for pointer in found:
        if pointer.startswith("/"):
            if all_of_them in found:
                raise ValueError(f"{{{pointer}}} is an element of one {each}; it cannot be used with {{{all_of_them}}}")
            check_pointer(pointer)


def works_on_directories(command: str) -> bool:
    return _PLACEHOLDER.search(command) is not None


def takes_all(command: str) -> bool:
    return any(f"{{{name}}}" in command for name in _ALL)


def shell_commands(command: str, directories: Sequence[str], values: Sequence[Json], workspace: Path) -> list[str]:
    """The lines for a shell: one per directory, or one for all of them.

    Raises:
        RequestError: a directory's value lacks an element.
    """
    path = shlex.quote(str(workspace))
    if takes_all(command):
        return [_filled(command, {**dict.fromkeys(_ALL, shlex.join(directories)), "workspace_path": path})]
    lines = []
    for directory, value in zip(directories, values, strict=True):
        words = {**dict.fromkeys(_ONE, shlex.quote(directory)), "workspace_path": path}
        for name in _PLACEHOLDER.findall(command):
            if name.startswith("/"):
                found = element(value, name, directory)
                words[name] = shlex.quote(found if isinstance(found, str) else json.dumps(found))
        lines.append(_filled(command, words))
    return lines


def _filled(command: str, words: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: words[match[1]], command)
