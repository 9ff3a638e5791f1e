"""Searches that propose the next trials, see how these end, and stop when they are sure enough.

A search is a generator: it yields the trials that it wants next, and is sent what became of them, in that order. It
knows no pytest and starts no process, so that simulations run it as the plugin does. Every trial has its record; a
search that is resumed asks for the same trials, and finds the records of those that are over.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.triage.searches import SearchReport


@dataclass(frozen=True)
class Wanted:
    """One trial of an ``arm``: a position on an axis, a set of variables, a condition; ``index`` counts its trials."""

    arm: Any
    index: int


#: See above.
Steps = Generator[list[Wanted], "list[TrialFacts]", None]


class Findings(Protocol):
    def to_json(self) -> dict[str, Any]: ...


class Search(Protocol):
    @property
    def result(self) -> Findings:
        """What is known by now."""
        ...

    def steps(self) -> Steps:
        """The trials, wave by wave."""
        ...

    def report(self) -> SearchReport:
        """What is said by now."""
        ...


@dataclass(frozen=True)
class BisectRequest:
    """What ``pytest-aorta bisect`` asks for; the positions are the cells of the plan, in its order.

    Attributes:
        confidence: probability at which a change is taken for found.
        signature: only failures whose text contains it count.
        speed: slow trials count, not failed ones.
        titles: of each position, what to say beside its name, such as the subject of a commit; or empty.
        weights: how likely each position is before any trial; empty where all are alike.
    """

    confidence: float = 0.95
    signature: str = ""
    speed: bool = False
    titles: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class AmplifyRequest:
    """What ``pytest-aorta amplify`` asks for; the conditions are the cells of the plan, the first one without any.

    Attributes:
        names: of the conditions.
        signature: only failures whose text contains it count.
    """

    names: tuple[str, ...]
    signature: str = ""


def amplify_request(value: Any) -> AmplifyRequest:
    """Of JSON, as the command writes it."""
    try:
        given = json.loads(value)
        return AmplifyRequest(**{**given, "names": tuple(given["names"])})
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError("what pytest-aorta amplify writes") from error


def bisect_request(value: Any) -> BisectRequest:
    """Of JSON, as the command writes it."""
    try:
        given = json.loads(value)
        return BisectRequest(**{**given, **{key: tuple(given.get(key, ())) for key in ("titles", "weights")}})
    except (TypeError, AttributeError) as error:
        raise ValueError("what pytest-aorta bisect writes") from error
