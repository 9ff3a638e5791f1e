"""The state of the repository that holds a workload's source."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.tool import Answer, ToolFailed, ask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_aorta.probe.guard import Facts, Guard

_TIMEOUT_SEC = 5.0

# No lock in a repository that is being worked in, no question on the terminal, no fetch of missing objects.
_ENVIRON = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}


def git_state(source: Path | None, guard: Guard) -> Facts | None:
    """``root``, ``commit``, ``branch``, ``dirty`` and ``source_tracked`` of the repository that holds ``source``.

    ``None`` without a source, outside of a repository, and where git is not installed. ``commit`` is ``None`` before
    the first commit, ``branch`` when HEAD is detached. ``dirty`` is about tracked files: results written beside the
    source do not count. ``source_tracked`` is ``False`` when the commit does not contain the source at all.
    """
    if source is None:
        return None
    source = Path(os.path.realpath(source))
    root = _root(source)
    git = shutil.which("git")
    if root is None or git is None:
        return None
    # fsmonitor would leave a daemon behind.
    command = [git, "-C", str(root), "-c", "core.fsmonitor=false", "--literal-pathspecs"]
    return guard.facts(
        "git",
        {
            "root": lambda: root,
            "commit": lambda: _output(command, "rev-parse", "--verify", "--quiet", "HEAD"),
            "branch": lambda: _output(command, "symbolic-ref", "--quiet", "--short", "HEAD"),
            "dirty": lambda: bool(_output(command, "status", "--porcelain", "--untracked-files=no")),
            "source_tracked": lambda: bool(_output(command, "ls-files", "--cached", "--", str(source))),
        },
    )


def _root(source: Path) -> Path | None:
    """The closest folder at or above ``source`` with a ``.git``, which is a file in worktrees and submodules."""
    folders: Iterable[Path] = (source, *source.parents)
    return next((folder for folder in folders if (folder / ".git").exists()), None)


def _output(command: list[str], *question: str) -> str | None:
    """What git printed; ``None`` when it quietly said no (exit status 1)."""
    answer: Answer = ask([*command, *question], _TIMEOUT_SEC, _ENVIRON)
    if answer.returncode == 1 and not answer.stderr:
        return None
    if answer.returncode != 0:
        raise ToolFailed(answer.complaint())
    return answer.stdout.strip()
