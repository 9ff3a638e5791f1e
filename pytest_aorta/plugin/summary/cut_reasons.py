"""Reasons of failed trials for which a line of pytest's short summary has no room beside a long node id."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_aorta.plugin.compat import terminal_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

#: Categories of reports, and their letters in ``-r``.
_CATEGORIES = {"error": "E", "failed": "f"}

#: Columns in which a reason can be recognised.
_ENOUGH = 24

#: Columns of the longest word before a node id, of a space, and of the dash after it.
_BESIDES = len("TIMEOUT") + len("  - ")


def cut_reasons(terminal: pytest.TerminalReporter, width: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """One line for each such trial of those that the short summary shows."""
    # pytest cuts nothing off then.
    if terminal.no_summary or terminal.verbosity >= 2 or environ.get("CI") or environ.get("BUILD_NUMBER"):
        return []
    lines = []
    for category, letter in _CATEGORIES.items():
        for report in terminal.stats.get(category, ()) if terminal.hasopt(letter) else ():
            crash = getattr(report.longrepr, "reprcrash", None)
            if getattr(report, "aorta", None) is None or crash is None:
                continue
            reason = crash.message.partition("\n")[0]
            room = width - _BESIDES - terminal_width(_shown_id(terminal.config, str(report.nodeid)))
            if room < min(_ENOUGH, terminal_width(reason)):
                lines.append(f"{report.nodeid.rpartition('::')[2]}: {reason}")
    return lines


def _shown_id(config: pytest.Config, nodeid: str) -> str:
    """A node id as the summary shows it: relative to the folder that pytest was started in."""
    path, separator, name = nodeid.partition("::")
    return os.path.relpath(config.rootpath / path, config.invocation_params.dir) + separator + name
