"""Which of several occurrences of one trial an item is: plugins have items run again, or collect them several times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from pytest_aorta.plugin.xdist_roles import decisions_of_controller


@dataclass(frozen=True)
class Occurrence:
    """Of a trial, or of a test that starts trials.

    Attributes:
        number: unique in the run for a node id, also among all xdist workers; 0 for the first.
        again: whether this very item has run before, as pytest-rerunfailures has it.
    """

    number: int = 0
    again: bool = False


class Occurrences:
    """Counts how often the items of a session begin.

    No process asks another one: an item's number follows from its place among the equal items of the session, which
    all workers collect alike; from the worker, where ``--dist each`` has all of them run every item; and from how often
    the item has begun here.
    """

    def __init__(self, config: pytest.Config) -> None:
        place: tuple[int, int] = decisions_of_controller(config).get("each") or (0, 1)
        self._worker, self._workers = place
        #: How often items have begun, by their identity: equal items have equal node ids.
        self._begun: Counter[int] = Counter()
        #: Of items that were collected several times, how often; and of each its place among those.
        self._copies: dict[str, int] | None = None
        self._places: dict[int, int] = {}

    def next(self, item: pytest.Item) -> Occurrence:
        """The occurrence of an item that begins now."""
        times = self._begun[id(item)]
        self._begun[id(item)] += 1
        first = self._places_of(item.session).get(id(item), 0)
        number = (times * self.copies(item) + first) * self._workers + self._worker
        return Occurrence(number, again=times > 0)

    def copies(self, item: pytest.Item) -> int:
        """How many items of the session have this node id."""
        self._places_of(item.session)
        return (self._copies or {}).get(item.nodeid, 1)

    def _places_of(self, session: pytest.Session) -> dict[int, int]:
        if self._copies is None:
            found = Counter(item.nodeid for item in session.items)
            self._copies = {nodeid: number for nodeid, number in found.items() if number > 1}
            seen: Counter[str] = Counter()
            for item in session.items if self._copies else ():
                if item.nodeid in self._copies:
                    self._places.setdefault(id(item), seen[item.nodeid])
                    seen[item.nodeid] += 1
        return self._places
