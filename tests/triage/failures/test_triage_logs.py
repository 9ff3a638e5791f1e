"""Which failures belong together, by what real libraries write: ``logs/*.toml``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from support.records import record

from pytest_aorta.launch.diagnosis.traces import crash_text, infer_exit_reason
from pytest_aorta.triage.signatures import Signature, signature_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOGS = Path(__file__).parent / "logs"


@dataclass(frozen=True)
class Log:
    """One failure: the ``n``-th text of a bug, and how it reached the record: raised by a workload, or printed."""

    bug: str
    family: str
    n: int
    way: str
    signature: Signature
    set_aside: bool


def traceback(at: str, raised: str) -> str:
    file, _, rest = at.partition(":")
    line, _, name = rest.partition(" in ")
    return f'Traceback (most recent call last):\n  File "/home/me/{file}", line {line}, in {name}\n    ...\n{raised}\n'


def records(bug: dict[str, Any], n: int, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    text, ended = bug["texts"][n].strip("\n"), bug.get("ended", "exit 1")
    if ended == "result":
        yield "result", {"result": {"passed": False, "failure_details": [{"error": text}]}, "failure": None}
    elif ended == "exit 1":
        at = bug["at"][n] if "at" in bug else "train.py:88 in step"
        printed = traceback(at, f"{bug['type']}: {text}")
        failure = {"kind": "exception", "phase": "run", "type": bug["type"].rpartition(".")[2], "message": text}
        yield "raised", {"failure": {**failure, "traceback": printed}}
        yield "printed", {"failure": asdict(infer_exit_reason(1, None, f"step 3\n{printed}"))}
    else:
        stderr = folder / "stderr"
        stderr.write_text(f"step 3\n{text}\nFatal Python error: Aborted\n\nThread 0x01 (most recent call first):\n")
        failure = {"kind": "signal", "phase": "run", "signal": ended, "message": f"ended by {ended}"}
        yield "crashed", {"failure": {**failure, "traceback": crash_text(stderr)}}


def read(folder: Path) -> list[Log]:
    found = []
    for file in sorted(LOGS.glob("*.toml")):
        bugs = tomllib.loads(file.read_text())["bug"]
        by_family: dict[str, list[str]] = {}
        for bug in sorted(bugs, key=lambda bug: sha256(bug["name"].encode()).digest()):
            by_family.setdefault(bug["family"], []).append(bug["name"])
        aside = {name for names in by_family.values() for name in names[::3]}
        for bug in bugs:
            for n in range(len(bug["texts"])):
                for way, changes in records(bug, n, folder):
                    signature = signature_of(record(exit_status="workload_failed", **changes))
                    assert signature is not None
                    set_aside = bug["name"] in aside or file.stem != "first"
                    found.append(Log(bug["name"], bug["family"], n, way, signature, set_aside))
    return found


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    return read(tmp_path_factory.mktemp("logs"))


def share(logs: list[Log], *, together: bool) -> float:
    """How many of the pairs of one library are as they should be: of one bug, or of two."""
    pairs = [
        (one.signature == other.signature) == together
        for one, other in combinations(logs, 2)
        if one.way == other.way and one.family == other.family and (one.bug == other.bug) == together
    ]
    return sum(pairs) / len(pairs)


def test_the_table_is_large_enough_to_say_something(logs: list[Log]) -> None:
    assert len({(log.bug, log.n) for log in logs}) >= 250
    assert {log.family for log in logs} >= {"nccl", "cuda", "hip", "xid", "c10d", "glibc", "kernel", "python"}


@pytest.mark.parametrize("set_aside", [False, True])
@pytest.mark.parametrize("together", [False, True], ids=["two bugs", "one bug"])
def test_failures_of_real_libraries_are_told_apart(logs: list[Log], set_aside: bool, together: bool) -> None:
    """A third of the bugs was set aside before the rules were written, those of the other files came after them."""
    assert share([log for log in logs if log.set_aside == set_aside], together=together) >= 0.95


def test_what_is_printed_has_the_signature_of_what_is_raised(logs: list[Log]) -> None:
    by_way = {(log.bug, log.n, log.way): log.signature for log in logs}
    raised = {key: found for key, found in by_way.items() if key[2] == "raised"}
    for (bug, n, _), found in raised.items():
        printed = by_way[bug, n, "printed"]
        if printed.message.endswith(" raised:"):  # what follows is on the next line, and only the first one is kept
            found = replace(found, message=printed.message)
        assert found == printed
