"""The user's cache folder, shared by all projects; its content can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/pytest-aorta``, else ``~/.cache/pytest-aorta``; it need not be there."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "pytest-aorta")
