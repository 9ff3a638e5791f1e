"""Numbers of a table as text, alike in the terminal and in matrix.md."""

from __future__ import annotations

from pytest_aorta.triage.statistics.interval import Interval

#: Rates whose interval ends below this are shown with a decimal.
_SMALL = 0.1

#: Smaller p values are only said to be smaller.
_SMALLEST_P = 0.0001


def percent(rate: float, *, decimals: int = 0) -> str:
    """``14%``."""
    return f"{rate:.{decimals}%}"


def below(rate: float) -> str:
    """An upper bound, rounded up, so that it still holds: ``14%``, or ``1.5%`` where it is small."""
    step = 0.001 if rate < _SMALL else 0.01
    rounded = min(1.0, -(-(rate - 1e-9) // step) * step)
    return percent(rounded, decimals=1 if step < _SMALL / 10 else 0)


def rate_with_interval(rate: float | None, interval: Interval) -> str:
    """``70% (48-85%)``; ``-`` without a rate."""
    if rate is None:
        return "-"
    decimals = 1 if interval.high < _SMALL else 0
    low = percent(interval.low, decimals=decimals).removesuffix("%")
    return f"{percent(rate, decimals=decimals)} ({low}-{percent(interval.high, decimals=decimals)})"


def difference_with_interval(difference: float, interval: Interval) -> str:
    """In percentage points: ``-70 (-85 to -42)``."""
    return f"{100 * difference:+.0f} ({100 * interval.low:+.0f} to {100 * interval.high:+.0f})"


def p_value(p: float) -> str:
    """Two significant digits: ``0.023``; ``<0.0001``."""
    if p < _SMALLEST_P:
        return f"<{_SMALLEST_P}"
    return f"{p:.4f}" if p < 0.001 else f"{p:.2g}"


def step_ms(milliseconds: float | None) -> str:
    """``22.10``; ``-`` where nothing was measured."""
    return "-" if milliseconds is None else f"{milliseconds:.2f}"


def counted(number: int, what: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
