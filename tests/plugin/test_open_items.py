"""Which items are open, and in which of the processes that run them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.plugin.report_hooks import OpenItems


def test_an_item_is_open_between_its_beginning_and_its_end() -> None:
    items = OpenItems()
    for nodeid in "ab":
        items.begin(nodeid)
    items.end("a")
    assert items.unfinished("abc") == [("b", 0)]
    items.end("b")
    items.end("b")  # pytest-rerunfailures reports each time that an item has run
    assert items.unfinished("abc") == []


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=4))
def test_of_workers_that_all_run_every_item_each_is_at_its_own(progress: list[tuple[int, bool]]) -> None:
    """Each has ended so many items, and perhaps begun the next one."""
    order = [f"item {number}" for number in range(7)]
    items = OpenItems()
    items.workers = len(progress)
    for worker, (done, is_at_next) in enumerate(progress):
        for nodeid in order[: done + is_at_next]:
            items.begin(nodeid)
        for nodeid in order[:done]:
            items.end(nodeid, worker)
    expected = [order[done] for done, is_at_next in progress if is_at_next]
    found = items.unfinished(order)
    assert sorted(nodeid for nodeid, _ in found) == sorted(expected)
    assert all(progress[worker][0] == order.index(nodeid) for nodeid, worker in found)
