"""What a report needs besides the base dependencies."""

from __future__ import annotations

import importlib.util

from pytest_aorta.settings import RequestError

_NEEDED = ("jinja2", "matplotlib")


class ReportError(RequestError):
    """A report that cannot be written."""


def check_libraries() -> None:
    """Find out whether a report can be made here; imports nothing.

    Raises:
        ReportError: with the command that installs what is missing.
    """
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise ReportError(
            f"a report needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'pytest-aorta[report]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # ``sys.modules`` has None in its place
        return False
