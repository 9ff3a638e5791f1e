"""The state of the repository that holds a workload's source.

Git runs when a cell starts. For a trial it runs again only when a file has changed since: a few hundred calls of stat()
cost a trial less than a process.
"""

from __future__ import annotations

import os
import shutil
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.loaded import file_of
from pytest_aorta.probe.tool import ToolFailed, ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_aorta.probe.guard import Facts, Guard

_TIMEOUT_SEC = 5.0
_TIMEOUT_IN_TRIAL_SEC = 1.0

# No lock in a repository that is being worked in, no question on the terminal, no fetch of missing objects.
_ENVIRON = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}

# About a millisecond's worth of stat().
MOST_WATCHED = 500


@dataclass(frozen=True)
class GitWatch:
    """Time and size (``seen``) of some ``files`` of a repository, of which ``watched`` are tracked ones."""

    """Signs of a change of a repository since the start of a cell."""

    root: str
    files: tuple[str, ...]
    seen: bytes
    watched: int


def git_state(source: Path | None, guard: Guard) -> tuple[Facts | None, GitWatch | None]:
    """``root``, ``commit``, ``branch``, ``dirty``, ``changed_files`` and ``source_tracked`` of ``source``'s repository.

    ``None`` without a source, outside of a repository, and where git is not installed. ``commit`` is ``None`` before
    the first commit, ``branch`` when HEAD is detached. ``dirty`` and ``changed_files`` (a count) are about tracked
    files: results written beside the source do not count. ``source_tracked`` is ``False`` when the commit does not
    contain the source at all.

    ``as_of`` is ``cell`` for a state that no watched file has left since, ``trial`` for one that git gave for
    the trial; ``watched_files`` of ``tracked_files`` are watched. The second value is what ``git_state_now()`` needs.
    """
    if source is None:
        return None, None
    source = Path(os.path.realpath(source))
    root = _root(source)
    git = shutil.which("git")
    if root is None or git is None:
        return None, None
    tracked = guard.fact("git.tracked", lambda: _tracked(git, root), None)
    # Before the status: a trial then notices what changes in between.
    watch = guard.fact("git.watch", lambda: _watch(root, source, tracked), None) if tracked is not None else None
    state: Facts = {"root": str(root), "commit": None, "branch": None, "dirty": None, "changed_files": None}
    nothing: Facts = {}
    state |= guard.fact("git.status", lambda: _status(git, root, _TIMEOUT_SEC), nothing)
    state |= {
        "source_tracked": None if tracked is None else _holds(tracked, _name_in_git(source.relative_to(root))),
        "as_of": "cell",
        "watched_files": None if watch is None else watch.watched,
        "tracked_files": None if tracked is None else len(tracked),
    }
    return state, watch


def git_state_now(state: Facts | None, watch: GitWatch | None) -> Facts | None:
    """``state`` as it is for a trial: itself, unless a watched file has changed; then git runs once.

    Without a watch git has failed already, and is left alone. Raises ``ToolFailed`` or ``OSError``.
    """
    if state is None or watch is None or _seen(watch.files) == watch.seen:
        return state
    git = shutil.which("git")
    if git is None:
        raise ToolFailed("git has gone from PATH since the cell started")
    return {**state, **_status(git, Path(watch.root), _TIMEOUT_IN_TRIAL_SEC), "as_of": "trial"}


def _root(source: Path) -> Path | None:
    folders: Iterable[Path] = (source, *source.parents)
    return next((folder for folder in folders if (folder / ".git").exists()), None)


def _status(git: str, root: Path, timeout_sec: float) -> Facts:
    question = ("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    lines = _output(git, root, timeout_sec, *question).splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = heads.get("branch.oid"), heads.get("branch.head")
    changed = sum(not line.startswith("#") for line in lines)
    return {
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": changed > 0,
        "changed_files": changed,
    }


def _tracked(git: str, root: Path) -> list[str]:
    return [name for name in _output(git, root, _TIMEOUT_SEC, "ls-files", "-z", "--cached").split("\0") if name]


def _holds(tracked: Iterable[str], name: str) -> bool:
    return any(file == name or file.startswith(f"{name}/") or name == "." for file in tracked)


def _name_in_git(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _watch(root: Path, source: Path, tracked: Sequence[str]) -> GitWatch:
    files = [str(root / name) for name in tracked]
    if len(files) > MOST_WATCHED:
        imported = {file_of(module) for module in list(sys.modules.values())}
        files = [file for file in files if file in imported or file == str(source)][:MOST_WATCHED]
    watched = (*_heads(root), *files)
    return GitWatch(str(root), watched, _seen(watched), len(files))


def _heads(root: Path) -> list[str]:
    folder = root / ".git"
    if folder.is_file():  # "gitdir: /path", in worktrees and submodules
        folder = root / folder.read_text(encoding="utf-8", errors="surrogateescape").partition(":")[2].strip()
    shared = folder
    if (folder / "commondir").exists():
        shared = folder / (folder / "commondir").read_text(encoding="utf-8", errors="surrogateescape").strip()
    head = (folder / "HEAD").read_text(encoding="utf-8", errors="surrogateescape").strip()
    files = [folder / "HEAD", folder / "index", shared / "packed-refs", shared / "reftable" / "tables.list"]
    if head.startswith("ref: "):
        files.append(shared / head.removeprefix("ref: "))
    return [str(file) for file in files]


def _seen(files: Sequence[str]) -> bytes:
    # An array, not a list of tuples: comparing one touches no object of the zygote that a fork would have to copy.
    numbers = array("q")
    for file in files:
        try:
            status = os.lstat(file)
        except OSError:
            numbers.extend((-1, -1))
        else:
            numbers.extend((status.st_mtime_ns, status.st_size))
    return numbers.tobytes()


def _output(git: str, root: Path, timeout_sec: float, *question: str) -> str:
    # fsmonitor would leave a daemon behind.
    command = [git, "-C", str(root), "-c", "core.fsmonitor=false", "--literal-pathspecs", *question]
    return ask(command, timeout_sec, _ENVIRON).strip()
