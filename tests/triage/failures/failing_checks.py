"""A helper of ``failing_workloads``."""

from __future__ import annotations


def check_finite(value: float) -> None:
    """Refuse nan and infinity."""
    if value - value != 0:
        raise ValueError(f"{value} at {id(value):#x}")
