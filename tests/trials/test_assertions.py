"""A failed ``assert`` says what it was about, and calls nothing of the workload for that."""

from __future__ import annotations

import linecache
import textwrap
from typing import Any

import numpy
import pytest
import torch
from support.stage import Stage

from pytest_aorta.trials import assertions

HOSTILE = """
class Hostile:
    def __init__(self): self.plain = 3
    def __repr__(self): raise SystemExit("repr was called")
    def __len__(self): raise SystemExit("len was called")
    def __eq__(self, other): return False
    def __hash__(self): return 1
    def __getattr__(self, name): raise SystemExit("getattr was called")
    @property
    def costly(self): calls.append(1); return 1
class Slotted:
    __slots__ = ("plain",)
class Named(list):
    def __repr__(self): raise SystemExit
calls = []
hostile, slotted, named = Hostile(), Slotted(), Named([1])
class Vars:
    __dict__ = property(lambda self: calls.append(2))
odd = Vars()
"""


def explained(statement: str, **variables: Any) -> tuple[str, list[str]]:
    """Message, and values, of a statement that fails in a function with these variables."""
    source = HOSTILE + f"def check({', '.join(variables)}):\n" + textwrap.indent(statement, "    ")
    name = f"<{abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)
    with pytest.raises(AssertionError) as caught:
        namespace["check"](**variables)
    found = assertions.explained(caught.value, {"message": "", "traceback": "trace\n"})
    assert namespace["calls"].count(1) + namespace["calls"].count(2) <= statement.count("costly")
    return found["message"], [line.strip() for line in found["traceback"].splitlines()[1:]]


CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("assert a == b", {"a": 1, "b": "x"}, ["a = 1", "b = 'x'"]),
    ("assert len(a) == b", {"a": [1, 2], "b": 3}, ["a = [1, 2]", "b = 3"]),
    ("assert a[1] > a[-1] and d['k']", {"a": [1, 2], "d": {"k": 0}}, ["a = [1, 2]", "d = {'k': 0}"]),
    ("assert a[7:] and missing", {"a": []}, ["a = []"]),
    ("assert not all(x < limit for x in a)", {"a": [1], "limit": 2}, []),
    ("assert hostile.plain == 4", {}, ["hostile.plain = 3"]),
    ("assert hostile.costly == 4", {}, []),
    ("assert hostile == 4", {}, []),
    ("assert odd.plain if 0 else a", {"a": None}, ["a = None"]),
    ("assert [hostile] == named", {}, []),
    ("assert bool(a) is print", {"a": 2.5}, ["a = 2.5"]),
    ("assert (\n    a ==\n    b\n), 'said'", {"a": 1, "b": 2}, ["a = 1", "b = 2"]),
    ("x = a; assert x > 1; y = 2", {"a": 0}, ["x = 0"]),
    (
        "assert my_token == d['api_key'] + ''",
        {"my_token": "hunter2", "d": {"api_key": "x"}},
        ["my_token = <redacted>", "d = <redacted>"],
    ),
    ("assert url == 1", {"url": "http://me:pw@host"}, ["url = <redacted>"]),
    ("assert a == 0", {"a": "x" * 5000}, ["a = '" + "x" * 119 + "..."]),
    ("assert t.sum() == 0", {"t": torch.ones(3)}, ["t = Tensor([1.0, 1.0, 1.0], torch.float32)"]),
    ("assert not t.any()", {"t": torch.ones(3, 30)}, ["t = Tensor of shape [3, 30], torch.float32, on cpu"]),
    ("assert m is None", {"m": torch.ones(3, device="meta")}, ["m = Tensor of shape [3], torch.float32, on meta"]),
    ("assert not n.any()", {"n": numpy.ones(2)}, ["n = ndarray([1.0, 1.0], float64)"]),
    ("assert s < 1", {"s": numpy.float32(1.5)}, ["s = scalar(1.5, float32)"]),
]


def test_values_are_those_that_are_known_without_a_call() -> None:
    for statement, variables, values in CASES:
        assert explained(statement, **variables)[1] == values, statement


def test_a_secret_is_seen_where_a_long_text_is_cut() -> None:
    url, header = f"postgresql://user:{'x' * 40}@host/base", f"GITHUB_AUTH_TOKEN={'x' * 40}".encode()
    _, values = explained("assert a == [b, c]", a=url, b=header, c=[url])
    assert values == ["a = <redacted>", "b = <redacted>", "c = <redacted>"]


def test_the_text_of_the_assertion_is_on_one_line_and_bounded() -> None:
    assert explained("assert (a ==\n    1), 'said'", a=2)[0] == "assert a == 1"
    assert len(explained("assert a == '" + "x" * 500 + "'", a=2)[0]) < 250
    assert explained("raise AssertionError") == ("", [])


WORKLOAD = """
class Compares:
    def __init__(self, config): pass
    def setup(self): self.seen = 3
    def run(self):
        expected = [1, 2]
        assert self.seen == len(expected)
"""


def test_a_trial_shows_it_from_a_file_and_from_a_registered_workload(stage: Stage) -> None:
    stage.write(compares=WORKLOAD)
    stage.register(compares="compares:Compares")
    result = stage.run("compares.py", "--aorta-workload", "compares", "--aorta-isolation", "spawn")
    result.assert_outcomes(failed=2)
    text = result.stdout.str()
    assert text.count("workload_failed in run: AssertionError: assert self.seen == len(expected)") == 2
    assert text.count("    self.seen = 3\n    expected = [1, 2]\n") == 2
    result.stdout.fnmatch_lines(["    1x assert self.seen == len(expected) (compares.py:6 in run)"])
    messages = {record["failure"]["message"] for record in stage.trials().values()}
    assert messages == {"assert self.seen == len(expected)"}
