"""Reads what a process left that crashed, hung or gave up: stacks, tracebacks and last lines."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.common.texts import read_tail
from pytest_aorta.launch.diagnosis.evidence import Location
from pytest_aorta.trials.lines import is_of_metrics, plain_line
from pytest_aorta.trials.outcome import signal_name
from pytest_aorta.trials.records import Failure
from pytest_aorta.trials.tracebacks import (
    HEADING,
    RAISED,
    Frame,
    RaisedException,
    exceptions_in,
    own_message,
    threads_in,
    type_and_message,
)

if TYPE_CHECKING:
    from pytest_aorta.trials.outcome import Observation


#: Bytes of a dump that are looked at.
_LOOKED_AT = 2**20

#: Files of the interpreter, except ``runpy``, which runs the program.
_STANDARD = re.compile(r"/lib/python3\.\d+/(?!(?:site|dist)-packages/|runpy\.py)|^<(?!frozen runpy)")

#: Files of this package, and functions that it puts into programs (``sitecustomize``).
_OURS = re.compile(r"/pytest_aorta/|^<aorta>$")

#: Functions that only call others.
_WRAPPERS = {"wrapper", "inner", "wrapped", "decorate_context", "_fn", "<lambda>"}

_COLLECTIVES = "/torch/distributed/distributed_c10d.py"


def read_dump(path: Path) -> list[list[Frame]]:
    """The first dump in a file; empty when there is none: the process has not reacted to the signal."""
    try:
        with path.open("rb") as file:
            return threads_in(file.read(_LOOKED_AT).decode(errors="replace"))
    except OSError:
        return []


def locate(threads: list[list[Frame]], source: str | None = None) -> Location | None:
    """Where the main thread was, as a place in the workload's code, whose file is ``source``."""
    if not threads or not threads[-1]:
        return None
    frames = threads[-1]
    # Frames of the workload are called by this package, which also calls the standard library.
    until = next((at for at, frame in enumerate(frames) if _OURS.search(frame.file)), len(frames))
    inner = frames[:until]
    if until < len(frames) and all(frame.file != source and _STANDARD.search(frame.file) for frame in inner):
        return None
    frames = inner
    of_workload = (at for at, frame in enumerate(frames) if frame.file == source or not frame.is_of_a_library)
    own = next(of_workload, 0)
    of_torch = (frame.name for frame in reversed(frames) if frame.file.endswith(_COLLECTIVES))
    collective = next((name for name in of_torch if not name.startswith("_") and name not in _WRAPPERS), None)
    if collective is None and (waits := waits_for_locks(threads)) is not None:
        return Location(waits, None)
    inside = [frame.name for frame in frames[:own] if frame.name not in _WRAPPERS]
    called = f"{inside[-1]} in " if inside else ""
    if inside and inside[-1] == "_find_and_load":
        imported = next((frame.file for frame in reversed(frames[:own]) if not frame.file.startswith("<")), "")
        package = re.sub(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/", "", imported).split("/")[0]
        called = f"import of {package.removesuffix('.py')} in " if package else called
    where = frames[own]
    function = "" if where.name == "<module>" else f"{where.name}() at "
    return Location(f"{called}{function}{Path(where.file).name} line {where.line}", collective)


def imports_a_library(threads: Sequence[Sequence[Frame]]) -> bool:
    """Whether the main thread imports an installed package or a module of Python, and runs no code of the program."""
    frames = threads[-1] if threads else []
    inner = itertools.takewhile(lambda frame: frame.is_of_a_library, frames)
    return any(frame.file.startswith("<frozen importlib") for frame in inner)


def waits_for_a_child(threads: Sequence[Sequence[Frame]]) -> bool:
    """Whether the main thread waits for the end or the output of a process that it has started."""
    frames = threads[-1] if threads else []
    inner = itertools.takewhile(lambda frame: _STANDARD.search(frame.file) is not None, frames)
    return any(_OF_CHILDREN.search(frame.file) for frame in inner)


#: Modules of Python that wait for processes.
_OF_CHILDREN = re.compile(r"/lib/python3\.\d+/(subprocess|multiprocessing/(popen_\w+|process|pool|connection))\.py$")


#: A line that takes a lock. A context manager that is made by a call has brackets, and is no lock.
_TAKES_LOCK = re.compile(r"\s*with\s+([\w.\[\]]+)\s*(?:,.*)?:|.*?([\w.\[\]]+)\.acquire\(")

#: Modules in which a thread waits for another one.
_WAITS = re.compile(r"/lib/python3\.\d+/(threading|queue|concurrent/futures/\w+)\.py$")

#: Number of locks that are named.
_PLACES = 4


def waits_for_locks(threads: Sequence[Sequence[Frame]]) -> str | None:
    """``left waits for lock b at hang.py:6, right for lock a at :10``, where the main thread waits as well.

    Sorted by place, so that the same deadlock gives the same text. ``None`` if no source is found, if the main thread
    does something else, or if it alone waits for a lock.
    """
    *others, of_main = [_lock_of(frames) for frames in threads]
    if not any(others) or (of_main is None and not _WAITS.search(threads[-1][0].file)):
        return None
    text, before = "", ""
    places = Counter(each for each in (*others, of_main) if each is not None)
    for (file, line, name, lock), count in sorted(places.items())[:_PLACES]:
        place = f":{line}" if file == before else f"{Path(file).name}:{line}"
        place += f" ({count} threads)" if count > 1 else ""
        text += f", {name} for lock {lock} at {place}" if before else f"{name} waits for lock {lock} at {place}"
        before = file
    return text


def _lock_of(frames: Sequence[Frame]) -> tuple[str, int, str, str] | None:
    """File, line, function and lock if the thread waits for a lock."""
    at = next((at for at, frame in enumerate(frames) if not _WAITS.search(frame.file)), None)
    if at is None or (at and frames[at - 1].name not in ("acquire", "__enter__")) or frames[at].is_of_a_library:
        return None
    frame = frames[at]
    with contextlib.suppress(OSError, IndexError):
        source = Path(frame.file).read_text(errors="replace").splitlines()[frame.line - 1]
        if match := _TAKES_LOCK.match(source):
            return frame.file, frame.line, frame.name.replace("<module>", "main"), match[1] or match[2]
    return None


#: Bytes read from the end of a log.
_TAIL = 2**16

#: Characters that are kept of a text.
_KEPT = 2**15

#: The first line that faulthandler writes in a crash.
_FATAL = re.compile(r"^(?:\[rank\d+\]: ?)?Fatal Python error: ", re.MULTILINE)

#: Lines that explain an abort: of the C++ runtime, ``assert`` and the allocator of glibc, and the runtime of ROCm.
_LAST_WORDS = re.compile(
    r"^.*(?:terminate called |  what\(\):|Assertion [`'].+' failed|\*\*\* .+ \*\*\*"
    r"|HSA_STATUS_|(?:Memory access fault|HW Exception) by GPU).*$"
    r"|^Last error:[ ]*\n?\S.*$"
    r"|^(?:free|malloc|realloc|munmap_chunk|double free|corrupted|malloc_consolidate)\b.*$",
    re.MULTILINE,
)

#: Number of lines before the stacks in which such words are searched.
_LINES_BEFORE = 60


def crash_text(stderr: Path | None) -> str | None:
    """The end of a log, from the words that explain the crash; ``None`` without such words and without stacks."""
    if stderr is None:
        return None
    text = read_tail(stderr, _TAIL)
    fatal = max((match.start() for match in _FATAL.finditer(text)), default=None)
    recent = "\n".join(text[:fatal].splitlines()[-_LINES_BEFORE:])
    words = [match[0] for match in _LAST_WORDS.finditer(recent)]
    if fatal is None and not words:
        return None
    stacks = [] if fatal is None else [text[fatal:].rstrip()]
    return "\n".join([*words, *stacks])[:_KEPT]


#: What torch puts before each line once the ranks know of each other.
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)

#: Lines after the first one of an NCCL error within which ``Last error:`` comes.
_LINES_OF_NCCL = 3

#: Exit code of an interpreter that an exception has ended.
_UNCAUGHT = 1


def infer_exit_reason(code: int, error_file: dict[str, Any] | None, stderr: Path | str | None) -> Failure:
    """The failure in ``run`` of a process that ended with ``code``."""
    if code < 0:
        name = signal_name(-code)
        if (raised := _printed(stderr, crashed=True)) is not None:
            return replace(raised, signal=name)
        return Failure("run", "signal", f"ended by {name}", signal=name)
    message = None if error_file is None else error_file.get("message")
    if isinstance(message, str):
        raised = Failure("run", "exception", message)
    elif isinstance(message, dict):
        extra = message.get("extraInfo")
        traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
        raised = _exception(str(message.get("message", "")), traceback if isinstance(traceback, str) else None)
    else:
        raised = _printed(stderr) if code == _UNCAUGHT else None
    if raised is not None:
        return replace(raised, exit_code=code)
    return Failure("run", "exit_code", f"ended itself with exit code {code}", exit_code=code)


def _printed(stderr: Path | str | None, *, crashed: bool = False) -> Failure | None:
    """The failure in the last traceback of a log; other lines may follow, as libraries complain when a process ends.

    If the interpreter has ``crashed``, only an exception counts that was ending it: torch may abort such a process
    while its threads still run. A crash within a call has other causes than an exception that was logged before.
    """
    text = read_tail(stderr, _TAIL) if isinstance(stderr, Path) else stderr or ""
    lines = _PREFIX.sub("", text).splitlines()
    starts = [number for number, line in enumerate(lines) if line == HEADING]
    if not starts:
        return None
    for number, line in enumerate(lines[starts[-1] + 1 :], starts[-1] + 1):
        if line.startswith(" ") or not RAISED.fullmatch(line):
            continue
        after = lines[number + 1 :]
        if crashed:
            stacks = after[next((at for at, each in enumerate(after) if _FATAL.match(each)), len(after)) :]
            if "  <no Python frame>" not in stacks or any(threads_in("\n".join(stacks))):
                return None
        # An error of NCCL has several lines.
        last = next((at for at, each in enumerate(after[:_LINES_OF_NCCL]) if each.startswith("Last error:")), None)
        raised = [line, *([] if last is None else after[: last + 2])]
        return _exception("\n".join(raised), "\n".join(lines[starts[-1] : number + 1]))
    return None


def _exception(text: str, traceback: str | None) -> Failure:
    kind, message = type_and_message(text)
    return Failure("run", "exception", message if kind is None else own_message(message), kind, traceback)


#: The peer is gone: gloo, TCPStore, NCCL and RCCL.
_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused|was likely closed)|Broken pipe|Read error|Socket closed|remote process exited"
    r"|got 0 bytes|ncclRemoteError|NCCL communicator was aborted|remote process has (exited|failed)"
    r"|eof \(this error originated at tensorpipe",
    re.IGNORECASE,
)

#: The peer does not come, or comes with something else: gloo, TCPStore, the watchdog of ProcessGroupNCCL, and the
#: checks of ``TORCH_DISTRIBUTED_DEBUG=DETAIL``.
_GAVE_UP = re.compile(
    r"Timed out waiting|Application timeout caused pair closure|wait timeout after \d+ms|timed out in monitoredBarrier"
    r"|failed to pass monitoredBarrier|Watchdog caught collective operation timeout"
    r"|ran for \d+ milliseconds before timing out|has timed out after \d+\w* while trying to connect"
    r"|Timed out after \d+ seconds waiting for clients|RPC ran for more than set timeout"
    r"|op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives",
    re.IGNORECASE,
)

#: gloo got more bytes from a peer than this rank's collective takes: ``op.nbytes. 64 vs 48.``
_OTHER_SIZE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def sizes_in(complaint: str | None) -> tuple[int, int] | None:
    """Bytes that came and bytes that were expected, if a rank complains that it got more than it expected."""
    sizes = None if complaint is None else _OTHER_SIZE.search(complaint)
    return None if sizes is None else (int(sizes[1]), int(sizes[2]))


#: Words of torch.distributed and its backends. A dataset or a server of the user's says "Connection reset" as well.
_OF_TORCH = re.compile(
    r"\b(gloo|c10d|NCCL\w*|RCCL\w*|ProcessGroup\w*|TCPStore|monitoredBarrier|Watchdog caught|tensorpipe|RPCErr)\b"
    r"|\b(unbound_buffer|pair|socket|Utils)\.(cc|cpp|hpp):\d+|Detected mismatch between collectives",
    re.IGNORECASE,
)
_TYPES_OF_TORCH = {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}
#: What a failure, or a line of a log, says of another rank.
Relation = Literal["peer lost", "gave up"]


def relation_to_a_peer(failure: Failure) -> Relation | None:
    """Whether a failure follows from another rank, because it or one of its causes comes from torch.distributed.

    That is so if its type says so, if its innermost frame is there, or if its message names a part of
    torch.distributed.
    """
    *causes, last = exceptions_in(failure.traceback or "") or [RaisedException((), None, "")]
    for raised in (*causes, replace(last, type=failure.type, message=failure.message)):
        in_torch = bool(raised.frames) and "/torch/distributed/" in raised.frames[0].file
        of_torch = in_torch or raised.type in _TYPES_OF_TORCH
        if (relation := relation_in(raised.message, of_torch=of_torch)) is not None:
            return relation
    return None


def relation_in(text: str, *, of_torch: bool = False) -> Relation | None:
    """What a text says of another rank, if it is ``of_torch`` or names a part of torch.distributed."""
    if not of_torch and _OF_TORCH.search(text) is None:
        return None
    return "gave up" if _GAVE_UP.search(text) else "peer lost" if _PEER_LOST.search(text) else None


def complaint_in(log: str, *, of_all: bool = False) -> str | None:
    """The last line of a log in which a library says that another rank is lost or did not come.

    ``of_all``: the ranks share the log; then only lines count that a process writes as it is ended.
    """
    lines = [line.strip() for line in log.splitlines() if relation_in(line)]
    lines = [line for line in lines if not of_all or "what():" in line or "Watchdog" in line]
    return lines[-1][:1000] if lines else None


#: An exception in a line of a log: ``ValueError: bad``, ``ValueError('bad')``. The rule: its name ends in ``Error`` or
#: ``Exception``, or is one of Python's own. torch's agent raises ``SignalException`` where it is asked to end.
_OWN = "|".join(name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception))
_NAMED = re.compile(
    rf"(?:^|[\s:|\]>)(\"'])(?P<type>(?:\w+\.)*(?!SignalException|\w*Warning)(?:[A-Z]\w*(?:Error|Exception)|{_OWN}))"
    r"(?:\((?P<arguments>.*)\)|: (?P<message>\S.*)|:?$)"
)


def last_words(logs: Sequence[Path], most: int) -> Failure | None:
    """The exception that a process logged before it ended: the first one in the last ``most`` lines of a log.

    Many programs catch what is raised, log it and exit. ``at`` is the time of the last write to that log.
    """
    failures = []
    for path in logs:
        lines = [line.strip() for line in read_tail(path, _TAIL).splitlines()]
        for line in [line for line in lines if line][-most:]:
            named = _NAMED.search(line)
            if named is None and relation_in(line) is None:
                continue
            kind, message = None, line
            if named is not None:
                kind = named["type"].rpartition(".")[2]
                message = named["message"] or (named["arguments"] or "").strip("'\"") or kind
            with contextlib.suppress(OSError):
                failures.append(Failure("run", "exception", message[:_KEPT], kind, at=path.stat().st_mtime))
            break
    return max(failures, key=lambda each: each.at or 0.0, default=None)


#: A line of a library in C++, such as torch's warning of a process group that was not destroyed.
_OF_A_LIBRARY = re.compile(r"(\[rank\d+\]:)?\[[IWEF]\d{4}\b")


def last_line(logs: Sequence[Path]) -> str | None:
    """The last line of the program itself that says more than metrics, from the log that was written last."""
    last_by_time: dict[float, str] = {}
    for path in logs:
        lines = [plain_line(line).strip() for line in read_tail(path, _TAIL).splitlines()]
        own = [line for line in lines if line and not _OF_A_LIBRARY.match(line) and not is_of_metrics(line)]
        with contextlib.suppress(OSError):
            last_by_time.update({path.stat().st_mtime: own[-1][:_KEPT]} if own else {})
    return last_by_time[max(last_by_time)] if last_by_time else None


#: In a trial's folder: stacks of its processes, or of the import of its workload; and output of that import.
STACKS, _OUTPUT = "stacks.log", "import.log"


def see_import_hang(
    seen: Observation, target: str, folder: Path | None, limit: float, stacks: str, output: str
) -> None:
    """Note that the import of ``target`` took longer than ``limit`` seconds, and write its stacks into ``folder``."""
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in ((STACKS, stacks), (_OUTPUT, output)):
                if text.strip():
                    (folder / name).write_text(text)
    where = target.rpartition(":")[0]
    location = locate(threads_in(stacks), where if where.endswith(".py") else None)
    seen.phase, seen.timed_out, seen.timeout = "import", True, limit
    seen.location = None if location is None else location.text
