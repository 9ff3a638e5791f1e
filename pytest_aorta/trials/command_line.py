"""A command as a workload: its words, the files that it names, and what its output says."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_aorta.trials.execution import TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED

_INSTALLED = {"site-packages", "dist-packages"}


def imported_files(script: str, path: Sequence[str]) -> list[str]:
    """Files in the folders of ``path`` that a script imports, or may import, directly or by another one."""
    from modulefinder import ModuleFinder  # not in every trial

    folders = [folder for folder in path if _INSTALLED.isdisjoint(Path(folder).parts)]
    finder = ModuleFinder(folders)
    with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError):  # the script itself will say so
        finder.run_script(script)
    files = (getattr(module, "__file__", None) for module in finder.modules.values())
    return [file for file in map(str, map(Path, filter(None, files))) if file != str(Path(script))]


def search_path(script: str, *, is_module: bool) -> list[str]:
    first = os.curdir if is_module else os.path.dirname(script) or os.curdir
    return [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


#: The workload that runs a command.
COMMAND_TARGET = "aorta_workloads.command:Command"

#: Only these are replaced, by variables; any other brace is a part of the command.
_PLACEHOLDERS = {"trial": TRIAL_INDEX, "dir": TRIAL_DIR, "seed": TRIAL_SEED}

_PLACEHOLDER = re.compile(r"\{(" + "|".join(_PLACEHOLDERS) + r")\}")

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")

#: Ends of the names of programs in source form.
_SCRIPTS = (".py", ".sh", ".bash", ".pl", ".rb", ".js", ".lua", ".jl", ".r")

#: Ends of the names of files that a program is configured by.
_CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".conf")

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


#: Options of Python without a value, after which its script may stand.
_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")


class CommandNotFound(Exception):
    """There is no such program or script; the message is for the user, and a traceback is of no use."""


def words_of(command: object) -> list[str]:
    """The words of a command, as a shell splits them; nothing is expanded.

    Raises:
        ValueError: what would be valid.
    """
    expected = "a program and its arguments, such as \"python train.py\"; for a shell's syntax, bash -c '...'"
    if not isinstance(command, str) or "\0" in command:
        raise ValueError(expected)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{expected} ({str(error).lower()})") from None
    if not words or not words[0]:
        raise ValueError(expected)
    if _ASSIGNMENT.match(words[0]):
        raise ValueError(
            f"{expected}; for variables, --aorta-extra-env NAME=VALUE, or env NAME=VALUE before the program"
        )
    return words


def checked_command(command: object) -> str:
    """A command whose words can be told apart; ``ValueError`` with what would be valid."""
    words_of(command)
    return str(command)


def placeholders_in(words: Sequence[str]) -> set[str]:
    """Names of the placeholders that a command has."""
    return {name for word in words for name in _PLACEHOLDER.findall(word)}


def script_of(words: Sequence[str]) -> str | None:
    """The file of the program itself, as the command names it; ``None`` where that is not a file with source text."""
    return next((word for word in words if word.lower().endswith(_SCRIPTS) and os.path.isfile(word)), _own_file(words))


def _own_file(words: Sequence[str]) -> str | None:
    module = module_of(words)
    if module is not None:
        path = Path(*module.split("."))
        found = (path.with_suffix(".py"), path / "__main__.py")
        return next((str(file) for file in found if file.is_file()), None)
    return words[0] if os.sep in words[0] and _is_text(words[0]) else None


def module_of(words: Sequence[str]) -> str | None:
    """The module that follows ``python -m``, or ``torchrun -m``."""
    for option, name in itertools.pairwise(words):
        if option == "-m" and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            return name
        if option == "-c":
            return None
    return None


def _is_text(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def files_in(words: Sequence[str]) -> list[str]:
    """Files that a command names and that decide what it does: scripts and configurations, as they are written there.

    And the files of its own that a Python script imports. Neither data nor folders: what a command writes, it names as
    well.
    """
    script = script_of(words)
    found = dict.fromkeys([script] if script is not None else [])
    if script is not None and script.endswith(".py"):
        found |= dict.fromkeys(imported_files(script, search_path(script, is_module=script not in words)))
    for word in words:
        for name in (word, word.partition("=")[2]):
            if name.lower().endswith((*_SCRIPTS, *_CONFIGURATIONS)) and os.path.isfile(name):
                found[name] = None
    return list(found)


def label_of(words: Sequence[str]) -> str:
    script = next((word for word in words if word.lower().endswith(_SCRIPTS)), None)
    if script is not None:
        name = Path(script).stem
    else:
        name = (module_of(words) or Path(words[0]).name).removesuffix(".__main__").rpartition(".")[2]
    return _safe(name, 40) or "program"


def distinct_names(commands: Sequence[Sequence[str]]) -> list[str]:
    """Names of workloads for commands: ``command-train``; where two run the same, with the words that differ.

    Equal for equal commands only.
    """
    labels = [label_of(words) for words in commands]
    names = []
    for words, label in zip(commands, labels, strict=True):
        alike = [each for each, other in zip(commands, labels, strict=True) if other == label]
        common = set.intersection(*map(set, alike))
        own = [word for word in _with_options(words, common) if word] if len(alike) > 1 else []
        names.append("-".join(["command", label, *([text] if (text := _safe("-".join(own), 40)) else [])]))
    runs = {
        name: {tuple(words) for words, other in zip(commands, names, strict=True) if other == name} for name in names
    }
    return [
        name if len(runs[name]) == 1 else f"{name}-{_digest(words)}"
        for name, words in zip(names, commands, strict=True)
    ]


def _with_options(words: Sequence[str], common: set[str]) -> list[str]:
    found = []
    for before, word in zip(("", *words), words, strict=False):
        if word not in common:
            found += (
                [before.lstrip("-"), word.lstrip("-")] if before in common and before[:1] == "-" else [word.lstrip("-")]
            )
    return found


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256(shlex.join(words).encode(errors="surrogatepass")).hexdigest()[:6]


def _safe(text: str, limit: int) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-._")[:limit].rstrip("-._")


def fill_in(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The words with ``{trial}``, ``{dir}`` and ``{seed}`` replaced by what a trial finds; all other braces stay."""
    return [_PLACEHOLDER.sub(lambda found: environ[_PLACEHOLDERS[found[1]]], word) for word in words]


def program_not_found(words: Sequence[str], path: str) -> str | None:
    """Why a command cannot be started; ``None`` where it can. ``path``: the folders that its program is looked for in.

    The script of a Python program is looked for as well: Python says the same with an exit code of 2, as scripts do.
    """
    program = words[0]
    if shutil.which(program, path=path) is not None:
        script = _python_script(words)
        found = script is None or os.path.exists(script)
        return None if found else f"there is no file {script!r} in {os.getcwd()}"
    if os.sep not in program:
        return f"there is no program {program!r} in the folders of PATH: {path}"
    if os.path.isdir(program):
        return f"{program!r} is a folder, not a program"
    if os.path.exists(program):
        return f"{program!r} is not executable; make it so, or name its interpreter before it"
    return f"there is no program {program!r} in {os.getcwd()}"


def _python_script(words: Sequence[str]) -> str | None:
    rest = itertools.dropwhile(_FLAGS.fullmatch, words[1:]) if is_python(words[0]) else iter(())
    word = next(rest, "-")
    return None if word.startswith("-") else word


def is_python(program: str) -> bool:
    """Whether a program is called as an interpreter of Python."""
    return _PYTHON.fullmatch(Path(program).name) is not None
