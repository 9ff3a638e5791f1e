"""What a run has shown: from the records of its trials to the table of verdicts.

Pure functions over records; nothing here imports pytest, starts a process or needs torch. In the order of imports:
``signatures``, ``facts`` of a trial, ``rates`` and ``sequential`` for statistics, ``speed``, ``cells``, ``checks``,
``verdicts``, ``columns`` with all that is said of a cell, and the formats: ``matrix``, ``report``, ``compare``, the
terminal's table.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_aorta.settings import Margin

#: What is no effect, unless a user says so: half of the baseline's failure rate, and at most 0.1.
MARGIN = Margin()

#: Changes of the step times that are none.
SPEED_MARGIN = 0.05


@dataclass(frozen=True)
class TriageSettings:
    """What a user may set of the verdicts. It is here because plans have it, and need none of the rest.

    Attributes:
        baseline: cell or mitigation set that others are compared with; ``None`` for the rule of ``choose_baselines``.
        margin: how much a failure rate may differ and still be the same.
        speed_margin: changes of the step times, as a share, that are none.
        sequential: whether the number of trials depends on what was seen of them.
        confirm: whether a cell that fails less needs fresh trials that say so again.
        signatures: rules of the user: names of ways to fail, each with a regular expression for the texts of a failure.
    """

    baseline: str | None = None
    margin: Margin = MARGIN
    speed_margin: float = SPEED_MARGIN
    sequential: bool = False
    confirm: bool = False
    signatures: tuple[tuple[str, str], ...] = ()
