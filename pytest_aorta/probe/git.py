"""The state of the repository that holds a workload's source, when its cell starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.tool import ask

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

_TIMEOUT_SEC = 5.0

# No lock in a repository that is being worked in, no question on the terminal, no fetch of missing objects.
_ENVIRON = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}


def git_state(source: Path | None, guard: Guard) -> Facts | None:
    """``root``, ``commit``, ``branch``, ``dirty``, ``changed_files`` and ``source_tracked`` of ``source``'s repository.

    ``None`` without a source, outside of a repository, and where git is not installed. ``commit`` is ``None`` before
    the first commit, ``branch`` when HEAD is detached. ``dirty`` and ``changed_files`` (a count) are about tracked
    files: results written beside the source do not count. ``source_tracked`` is ``False`` when the commit does not
    contain the source at all.
    """
    git = shutil.which("git")
    if source is None or git is None:
        return None
    source = Path(os.path.realpath(source))
    root = next((folder for folder in (source, *source.parents) if (folder / ".git").exists()), None)
    if root is None:
        return None

    def output(*question: str) -> str:
        # fsmonitor would leave a daemon behind.
        command = [git, "-C", str(root), "-c", "core.fsmonitor=false", "--literal-pathspecs", *question]
        return ask(command, _TIMEOUT_SEC, _ENVIRON).strip()

    def status() -> Facts:
        lines = output("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no").splitlines()
        heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
        changed = sum(not line.startswith("#") for line in lines)
        return {
            "commit": None if heads.get("branch.oid") == "(initial)" else heads.get("branch.oid"),
            "branch": None if heads.get("branch.head") == "(detached)" else heads.get("branch.head"),
            "dirty": changed > 0,
            "changed_files": changed,
        }

    unknown: Facts = {"commit": None, "branch": None, "dirty": None, "changed_files": None}
    name = str(source.relative_to(root))
    return {
        "root": str(root),
        **guard.fact("git.status", status, unknown),
        "source_tracked": guard.fact("git.tracked", lambda: bool(output("ls-files", "--cached", "--", name)), None),
    }
