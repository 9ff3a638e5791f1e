"""The user's cache folder, shared by all projects; its content can be made again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Answers in a folder, before the older half of them is removed.
_MOST = 2000


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/pytest-aorta``, else ``~/.cache/pytest-aorta``; it need not be there."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "pytest-aorta")


def answers_folder(name: str) -> Path | None:
    """A folder for answers below the cache; ``None`` where none can be written."""
    folder = cache_folder() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def kept(folder: Path | None, question: object, find: Callable[[], Any]) -> Any:
    """The answer to a question, both JSON-able: from ``folder``, or found, and kept there unless ``find`` raises."""
    if folder is None:
        return find()
    key = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:40]
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / key).read_bytes())
    answer = find()
    with contextlib.suppress(OSError):
        files = list(os.scandir(folder))
        if len(files) >= _MOST:
            for entry in sorted(files, key=lambda each: each.stat().st_mtime_ns)[: _MOST // 2]:
                os.unlink(entry)
        # Without tempfile, which a trial may not have imported: it brings a random generator along.
        unfinished = folder / f"{key}.{os.getpid()}.tmp"
        unfinished.write_text(json.dumps(answer), encoding="utf-8")
        os.replace(unfinished, folder / key)
    return answer
