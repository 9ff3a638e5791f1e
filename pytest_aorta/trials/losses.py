"""Decides which records say nothing about the workload: trials that were lost or did not reach their main work."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_aorta.trials.outcome import BEFORE_WORK, CANNOT_JUDGE, HOST_DIED, INTERRUPTED, NO_HOST

if TYPE_CHECKING:
    from pytest_aorta.trials.records import Failure
    from pytest_aorta.trials.result import ExitStatus

_SHARED = re.compile("|".join(map(re.escape, (INTERRUPTED, HOST_DIED, NO_HOST))))

#: ``ENOSPC`` and ``EDQUOT``, as the message of an ``OSError`` has them.
_FULL_DISK = re.compile(r"\[Errno (28|122)\] ")


def was_interrupted(record: Mapping[str, Any]) -> bool:
    return ((record.get("failure") or {}).get("message") or "").startswith(INTERRUPTED)


#: Signals that end all processes of a job, or of a session, and the exit codes by which shells name them.
_ENDINGS = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
_ENDING_CODES = tuple(128 + signal.Signals[name] for name in _ENDINGS)


def was_perhaps_ended(status: ExitStatus, failure: Failure | None) -> bool:
    """Whether the signal that ended this trial may have been meant for all processes of its run."""
    if failure is None or status != "workload_failed" or failure.kind not in ("signal", "exit_code"):
        return False
    return failure.signal in _ENDINGS or failure.exit_code in _ENDING_CODES


def is_in_doubt(record: Mapping[str, Any]) -> bool:
    return bool((record.get("failure") or {}).get("in_doubt"))


def settled(record: Mapping[str, Any], why: str | None, *, name: str = "") -> dict[str, Any]:
    """The record with its doubt settled.

    ``why``: what has ended the run, and the trial with it; ``None`` if the trial has failed by itself. Then ``name``,
    the cause as the scheduler names it, is put before the message.
    """
    failure = {**record["failure"], "in_doubt": None}
    if why is not None:
        return {**record, "exit_status": "infrastructure_failed", "failure": {**failure, "message": INTERRUPTED + why}}
    if name and not failure["message"].startswith(name):
        failure["message"] = f"{name}: {failure['message']}"
    return {**record, "failure": failure}


def did_not_run(record: Mapping[str, Any]) -> bool:
    """Whether a recorded trial ended before its main work, and so says nothing about the workload.

    A deadline that passed before ``run()`` of a rank began says nothing either, unless ranks have been started again.
    """
    status, failure = record["exit_status"], record.get("failure") or {}
    if status == "ok":
        return False
    if status == "timeout":
        restarted = bool((record.get("elastic") or {}).get("attempts"))
        ended = [failure, *(rank.get("failure") or {} for rank in record.get("ranks") or ())]
        late = [each for each in ended if each.get("kind") in ("timeout", "stall") and each["phase"] in BEFORE_WORK]
        never_heard_of = any(each.get("kind") == "rank" for each in ended)
        return not restarted and (never_heard_of or bool(late))
    if record["result"].get("main_work_started") is False:
        return True
    unjudged = failure.get("type") == CANNOT_JUDGE
    return status == "infrastructure_failed" and (failure.get("phase") in BEFORE_WORK or unjudged)


def met_full_disk(record: Mapping[str, Any]) -> bool:
    failure = record.get("failure") or {}
    return failure.get("type") == "OSError" and _FULL_DISK.search(failure["message"]) is not None


def is_lost(record: Mapping[str, Any]) -> bool:
    is_infrastructure = record["exit_status"] == "infrastructure_failed" or is_in_doubt(record)
    return did_not_run(record) or is_infrastructure or met_full_disk(record)


def shared_event(record: Mapping[str, Any]) -> str | None:
    """The event that has ended this and other trials, in equal words for all of them; ``None`` if there is none.

    A broken preparation of a cell is one event, in whichever trials it is recorded: none of them had a process of its
    own. So are a host that died, the end of a run, and a disk that is full.
    """
    failure = record.get("failure")
    if failure is None:
        return None
    message: str = failure["message"]
    variables = (record.get("env") or {}).get("env_vars") or {}
    job = (record.get("side_by_side") or {}).get("job") or variables.get("SLURM_JOB_ID")
    place = record.get("host") if job is None else f"job {job}"
    if met_full_disk(record):
        return f"no space left on {place}"
    if is_in_doubt(record):
        return f"perhaps the end of {place}"
    if match := _SHARED.match(message):
        text = message if match[0] == INTERRUPTED else message[match.end() :]
        return text if job is None else f"{text} ({place})"
    # A worker that died has taken one trial along.
    alone = failure["kind"] == "signal" and failure.get("signal") is None
    had_process = "wall_clock_sec" not in record or record["wall_clock_sec"] is not None
    return None if alone or had_process else f"{message} ({place})"


#: Exceptions for something that does not exist.
_NOT_THERE = ("ImportError", "ModuleNotFoundError", "FileNotFoundError")

#: Messages of torch, CUDA, HIP and the loader that there is no device.
_NO_DEVICE = re.compile(
    r"Found no NVIDIA driver|No (?:CUDA|HIP) GPUs are available|not compiled with (?:CUDA|ROCm|HIP) enabled"
    r"|no (?:CUDA|ROCm)-capable device|NVIDIA driver on your system is too old|CUDA driver version is insufficient"
    r"|[Nn]o GPUs? found|lib(?:cuda|amdhip64|cudart)\S*\.so|CUDA device but torch\.cuda\.is_available\(\) is False"
    r"|[Ii]nvalid device ordinal"
)

#: Messages, and exit codes, of shells, interpreters and argument parsers that cannot start something.
_NO_PROGRAM = re.compile(
    r"can't open file|not found|No such file or directory|Permission denied|cannot execute|: error: "
)
_NO_PROGRAM_CODES = (2, 126, 127)

_OF_RANKS = re.compile(r"\A(?:ranks? \d[\d,-]*: )+")


def obstacle_of(record: Mapping[str, Any]) -> str | None:
    """The module, file, device or argument that a command lacked before its first step or metric.

    Whether it cannot run for that, only all trials of its cell can tell: they have the same text. A file whose name
    differs from trial to trial is one that the program has made itself. ``None`` for any other end.
    """
    result, failure = record["result"], record.get("failure") or {}
    output = result.get("output") or {}
    if record["exit_status"] != "workload_failed" or failure.get("phase") != "run" or not output:
        return None
    if output.get("begun") or result.get("executed_iterations") is not None:
        return None
    message = _OF_RANKS.sub("", failure.get("message") or "").partition("\n")[0]
    kind, words = failure.get("kind"), message if failure.get("kind") != "signal" else failure.get("traceback") or ""
    is_missing = (
        (kind == "exit_code" and failure.get("exit_code") in _NO_PROGRAM_CODES and _NO_PROGRAM.search(message))
        or (failure.get("type") or "").rpartition(".")[2] in _NOT_THERE
        or _NO_DEVICE.search(words)
    )
    what = f"{failure['type']}: {message}" if failure.get("type") else message.removeprefix("ended itself with ")
    return what if is_missing else None
