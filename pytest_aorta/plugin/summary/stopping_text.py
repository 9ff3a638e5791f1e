"""What the summary says of trials that were not needed, or for which there was no time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_aorta.plugin.summary.side_by_side import counted

if TYPE_CHECKING:
    from pytest_aorta.plan import Selection
    from pytest_aorta.triage.decisions import Decisions
    from pytest_aorta.triage.verdicts import Triage


def stopping_lines(selection: Selection, triage: Triage, decisions: Decisions | None, skipped: int) -> Iterator[str]:
    """One line per option that may have ended trials; ``skipped`` because their cells were decided."""
    if decisions is not None:
        compared = set(triage.baselines().of)
        found = f"{len(compared & set(decisions.decided))} of {counted(len(compared), 'cell')} decided"
        yield f"{found}, {counted(skipped, 'trial')} saved (--aorta-stop=decided)"
    if selection.duration is not None:
        rounds = max((trials.statistics.total for trials in triage.cells), default=0)
        line = f"{counted(rounds, 'round')} in {duration_text(selection.duration)} (--aorta-stop)"
        if rounds >= selection.trials:
            line += "; there were no more: --aorta-trials gives more"
        yield line


def duration_text(seconds: float) -> str:
    """As it is typed: ``1h30m``."""
    parts, rest = [], seconds
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if rest >= length:
            number, rest = divmod(rest, length)
            parts.append(f"{number:g}{unit}")
    return "".join(parts) + (f"{rest:g}s" if rest or not parts else "")
