"""A command as a workload: its words, the files that it names, and what its output says."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aorta.trials.execution import TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED, start_folder

#: The workload that runs a command.
COMMAND_TARGET = "aorta_workloads.command:Command"

#: Placeholders and their variables; any other brace is a part of the command.
_PLACEHOLDERS = {"trial": TRIAL_INDEX, "dir": TRIAL_DIR, "seed": TRIAL_SEED}

_PLACEHOLDER = re.compile(r"\{(" + "|".join(_PLACEHOLDERS) + r")\}")

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")

#: Suffixes of programs in source form: without shell scripts, and all.
_NO_SHELL_SCRIPTS = (".py", ".pl", ".rb", ".js", ".lua", ".jl", ".r")
_SCRIPTS = (*_NO_SHELL_SCRIPTS, ".sh", ".bash")

#: Suffixes of configuration files.
_CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".conf")

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")

#: What quotes and backslashes keep a shell from looking at.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)

#: What no shell replaces, but for text in double quotes, which is kept as a group; and what it replaces there.
_LITERAL = re.compile(r"""'[^']*'|\\.|("(?:\\.|[^"\\])*")""", re.DOTALL)
_IN_DOUBLE_QUOTES = re.compile(r"(?<!\\)\$([A-Za-z_]\w*|[{(])")
_SHELL = re.compile(r"(?<![\w.-])(ba|da|k|z)?sh\s+(-\S+\s+(pipefail\s+)?)*-\w*c\b")

#: What only a shell does: pipes, lists, redirections, substitutions.
_SHELL_SYNTAX = re.compile(r"[|&;<>`]+|\$(\w+|[{(])|(?<!\S)~(?=/|\s|$)")

#: What stands between words of a shell.
_SEPARATORS = re.compile(r"[\s;|&()<>'\"=`]+")

#: Characters of a shell script that are looked at.
_LONGEST_SCRIPT = 2**20

_LAUNCHER = re.compile(
    r"(?<![^\s/'\"])(torchrun|accelerate|deepspeed|mpirun|mpiexec|srun)(?=\s)|-m\s+(torch\.distributed\.\w+|accelerate\.\S+)"
)

#: The first line of a script that a shell reads.
_SHELL_LINE = re.compile(r"#!.*\b(ba|da|k|z)?sh\b")


#: Options of Python without a value, after which its script may stand.
_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")


class CommandNotFound(Exception):
    """There is no such program or script; the message is for the user, and a traceback is of no use."""


def command_words(command: object) -> list[str]:
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
    if of_shell := _of_a_shell(command):
        raise ValueError(
            f"no {of_shell}, because no shell runs the command: "
            f"for a shell, {_by_shell(command)}; "
            f"for the character itself, single quotes around the word"
        )
    return words


def _of_a_shell(command: str) -> str | None:
    """The part of a command that a shell would replace or act on, and its place."""
    bare = _QUOTED.sub("\0", command)
    if match := _SHELL_SYNTAX.search(bare):
        return f"{match[0]!r} outside of quotes"
    match = _IN_DOUBLE_QUOTES.search(_LITERAL.sub(lambda each: each[1] or "", command))
    if match and not _SHELL.search(command):
        return f"{match[0]!r} in double quotes"
    patterns = (word for word in bare.split() if "\0" not in word and re.search(r"[*?]", word))
    return next((f"{word!r} outside of quotes" for word in patterns if glob.glob(word)), None)


def _by_shell(command: str) -> str:
    """The option with which a shell runs a command; a pipe fails as its first program does."""
    shell = f"bash {'-o pipefail ' if '|' in command else ''}-c"
    shown = re.sub(r"(?<![\w-])([A-Za-z_]\w*=)\S+", r"\1...", command)  # the values of variables may be secrets
    if not set(shown) & set("'\"$`\\!"):
        return f"--aorta-command \"{shell} '{shown}'\""
    return (
        f"--aorta-command '{shell} \"{shown}\"'"
        if not set(shown) & set("'\"")
        else f"--aorta-command \"{shell} '...'\""
    )


def checked_command(command: object) -> str:
    """Check that a command can be split into words; raises ``ValueError`` with what would be valid."""
    command_words(command)
    return str(command)


def placeholders_in(words: Sequence[str]) -> set[str]:
    return {name for word in words for name in _PLACEHOLDER.findall(word)}


def _head(path: str | None, size: int = 300) -> bytes | None:
    """The beginning of a file; ``None`` if it cannot be read."""
    try:
        with open(path or "", "rb") as file:
            return file.read(size)
    except OSError:
        return None


def script_of(words: Sequence[str]) -> str | None:
    """The file of the program itself, as the command names it; ``None`` where that is not a file with source text."""
    scripts = [word for word in words if word.lower().endswith(_SCRIPTS)]
    if (module := module_of(words)) is not None:
        path = Path(*module.split("."))
        scripts += [str(path.with_suffix(".py")), str(path / "__main__.py")]
    elif os.sep in words[0] and _head(words[0], 2) == b"#!":
        scripts.append(words[0])
    return next(filter(os.path.isfile, scripts), None)


def module_of(words: Sequence[str]) -> str | None:
    """The module that follows ``python -m``, or ``torchrun -m``."""
    for option, name in itertools.pairwise(words):
        if option == "-m" and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            return name
        if option == "-c":
            return None
    return None


def files_in(words: Sequence[str]) -> list[str]:
    """Scripts and configurations that a command names, and its program where that lies here; as written there.

    Also those in the words of ``bash -c``, and in the shell scripts among them. Neither data nor folders: what a
    command writes, it names as well. What its Python processes read is known when they have run.
    """
    script = script_of(words)
    scripts = dict.fromkeys([script] if script is not None else [])
    if os.sep in words[0] and not is_python(words[0]) and os.path.isfile(words[0]):
        scripts |= dict.fromkeys([words[0]] if Path(words[0]).absolute().is_relative_to(Path.cwd()) else [])
    texts = [*words, *map(_shell_script, scripts)]
    for text in texts:  # grows
        for name in (text, *_SEPARATORS.split(text)):
            is_one = name.lower().endswith((*_SCRIPTS, *_CONFIGURATIONS)) and os.path.isfile(name)
            if is_one and name not in scripts:
                scripts[name] = None
                texts.append(_shell_script(name))
    return list(scripts)


def _shell_script(file: str) -> str:
    if file.lower().endswith((*_NO_SHELL_SCRIPTS, *_CONFIGURATIONS)):
        return ""
    text = (_head(file, _LONGEST_SCRIPT) or b"").decode("utf-8", "replace")
    return text if "\0" not in text and (text[:2] != "#!" or _SHELL_LINE.match(text)) else ""


def label_of(words: Sequence[str]) -> str:
    script = next((word for word in words if word.lower().endswith(_SCRIPTS)), None)
    if script is not None:
        name = Path(script).stem
    else:
        module = (module_of(words) or "").removesuffix(".__main__").rpartition(".")[2]
        name = module or Path(words[0]).name
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
        own: list[str] = []
        for before, word in zip(("", *words), words, strict=False):
            if word not in common and len(alike) > 1:
                own += [before.lstrip("-")] if before in common and before[:1] == "-" else []
                own += [word.lstrip("-")]
        names.append("-".join(filter(None, ["command", label, _safe("-".join(filter(None, own)), 40)])))
    runs: dict[str, set[tuple[str, ...]]] = {}
    for name, words in zip(names, commands, strict=True):
        runs.setdefault(name, set()).add(tuple(words))
    digests = [hashlib.sha256(shlex.join(words).encode(errors="surrogatepass")).hexdigest()[:6] for words in commands]
    return [name if len(runs[name]) == 1 else f"{name}-{digest}" for name, digest in zip(names, digests, strict=True)]


def _safe(text: str, limit: int) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-._")[:limit].rstrip("-._")


def fill_in(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Replace ``{trial}``, ``{dir}`` and ``{seed}`` by the trial's values; all other braces stay."""
    return [_PLACEHOLDER.sub(lambda match: environ[_PLACEHOLDERS[match[1]]], word) for word in words]


def located(words: Sequence[str]) -> list[str]:
    """The words of a command for a trial in a working directory of its own.

    Programs, scripts and configurations that it does not have are taken from the directory in which pytest was started.
    """
    here, start = Path.cwd(), Path(start_folder())
    if here == start:
        return list(words)
    files, script = [], _python_script(words)
    for number, word in enumerate(words):
        option, equals, value = word.rpartition("=")
        is_named = (
            word == script or value.lower().endswith((*_SCRIPTS, *_CONFIGURATIONS)) or (number == 0 and os.sep in word)
        )
        away = is_named and not (here / value).exists() and (start / value).is_file()
        files.append(f"{option}{equals}{start / value}" if away else word)
    return files


def module_path(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """``PYTHONPATH`` with which ``python -m`` finds a module in the directory where pytest was started."""
    start, module = start_folder(), module_of(words)
    if (
        module is None
        or Path.cwd() == Path(start)
        or not glob.glob(os.path.join(start, module.partition(".")[0]) + "*")
    ):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [start, environ.get("PYTHONPATH")]))}


def program_not_found(words: Sequence[str], path: str) -> str | None:
    """Why a command cannot be started; ``None`` if it can. ``path``: the folders in which its program is searched.

    The script of a Python program is looked for as well: Python says the same with an exit code of 2, as scripts do.
    """
    program = words[0]
    if shutil.which(program, path=path) is not None:
        script = _python_script(words)
        exists = script is None or os.path.exists(script)
        return None if exists else f"there is no file {script!r} in {os.getcwd()}{_alike(str(script))}"
    if os.sep not in program:
        if os.path.isfile(program):
            return f"{program!r} is no program in PATH, but a file here: python {program}, or ./{program}"
        return f"there is no program {program!r} in the folders of PATH: {path}"
    if os.path.isdir(program):
        return f"{program!r} is a folder, not a program"
    if os.path.exists(program):
        return f"{program!r} is not executable; make it so, or name its interpreter before it"
    return f"there is no program {program!r} in {os.getcwd()}"


def _alike(path: str) -> str:
    import difflib

    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        if nearest := difflib.get_close_matches(name, os.listdir(folder or os.curdir), 1):
            return f"; did you mean {os.path.join(folder, nearest[0])!r}?"
    return ""


def runnable(words: Sequence[str], path: str) -> list[str]:
    """The words with which a program is started: a script that does not begin with ``#!`` runs in ``sh``."""
    program = shutil.which(words[0], path=path)
    head = _head(program, 80)
    if program is None or head is None or head[:2] == b"#!" or set(head) & {0, 0x7F}:
        return list(words)
    return ["/bin/sh", program, *words[1:]]


def launcher_in(command: str) -> str | None:
    match = _LAUNCHER.search(command)
    return None if match is None else match[1] or match[2]


def tells_what_it_reads(words: Sequence[str]) -> bool:
    """Whether a program is Python, or a script of Python."""
    head = _head(shutil.which(words[0]))
    return head is not None and (is_python(words[0]) or re.match(rb"#!.*\b(python|pypy)", head) is not None)


def takes_hash_seed(words: Sequence[str]) -> bool:
    """Whether the program is Python and reads its variables, ``PYTHONHASHSEED`` among them."""
    flags = itertools.takewhile(_FLAGS.fullmatch, words[1:]) if is_python(words[0]) else iter(())
    return tells_what_it_reads(words) and not any(set("EI") & set(flag) for flag in flags)


def _python_script(words: Sequence[str]) -> str | None:
    rest = itertools.dropwhile(_FLAGS.fullmatch, words[1:]) if is_python(words[0]) else iter(())
    word = next(rest, "-")
    return None if word.startswith("-") else word


def is_python(program: str) -> bool:
    return _PYTHON.fullmatch(Path(program).name) is not None


#: Programs and modules in whose process torch's agent starts ranks.
_AGENTS = {"torchrun", "accelerate", "torch.distributed.run", "accelerate.commands.launch"}


@dataclass(frozen=True)
class PythonLine:
    """A command that an interpreter such as this one runs.

    ``words``: all of them, as ``sys.orig_argv`` has them. ``name``: of script or module, which ``arguments`` follow.
    """

    python: str
    words: tuple[str, ...]
    name: str
    is_module: bool
    arguments: tuple[str, ...]
    unbuffered: bool

    @property
    def is_agent(self) -> bool:
        """Whether it may start ranks from its own process."""
        return (self.name if self.is_module else Path(self.name).name) in _AGENTS

    def first_folder(self) -> str:
        """Where its imports are looked for first."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.realpath(self.name))


def python_line(words: Sequence[str], path: str) -> PythonLine | None:
    """Read a command: ``python [-u] FILE``, ``python [-u] -m MODULE``, or a script that begins with ``#!python``.

    ``None`` where it is another one, or of another interpreter. ``path``: folders that its program is looked for in.
    """
    program = shutil.which(words[0], path=path)
    if program is None:
        return None
    if not is_python(program):
        first = (_head(program) or b"").partition(b"\n")[0]
        interpreter = os.fsdecode(first[2:]).split() if first[:2] == b"#!" else []
        if len(interpreter) != 1 or not is_python(interpreter[0]):
            return None
        words, program = [*interpreter, program, *words[1:]], interpreter[0]
    same_folder = os.path.dirname(os.path.abspath(program)) == os.path.dirname(sys.executable)
    if not same_folder or os.path.realpath(program) != os.path.realpath(sys.executable):
        return None
    rest = list(words[1:])
    unbuffered = rest[:1] == ["-u"]
    rest = rest[1:] if unbuffered else rest
    is_module = rest[:1] == ["-m"]
    rest = rest[1:] if is_module else rest
    if not rest or rest[0].startswith("-"):
        return None
    if not is_module and ((head := _head(rest[0], 2**12)) is None or b"\0" in head):
        return None
    return PythonLine(program, tuple(words), rest[0], is_module, tuple(rest[1:]), unbuffered)


def line_of(command: str, path: str) -> PythonLine | None:
    """The Python command line in ``command``; ``path``: where its interpreter is looked for.

    ``None`` if ``command`` does not run Python, or if its program differs from trial to trial.
    """
    words = command_words(command)
    line = python_line(words, path)
    return None if line is None or placeholders_in([line.name]) else line
