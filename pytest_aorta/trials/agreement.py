"""The result of a trial as it is recorded: in agreement with the exit status, its own contradictions named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aorta.trials.events import FailureData, RankData, ResultData
    from pytest_aorta.trials.outcome import Observed

#: Ranks whose failures are listed in ``failure_details``; all have theirs in ``ranks``.
_LISTED = 64

#: Characters of their messages there.
_MESSAGE = 1000

_CAUSE = ("rank", "phase", "kind", "type", "signal", "exit_code", "message")


def recorded_result(seen: Observed) -> dict[str, Any]:
    """The fields of the ``ResultRecord`` of a trial that is over.

    Where a rank has failed, so has the trial, whatever rank 0 returned: ``passed`` is false, and ``failure_details``
    lists the failed ranks with their causes, that of the trial first.
    """
    if seen.rank_failure is None:
        return {"passed": False} if seen.result is None else dict(seen.result)
    result: dict[str, Any] = {} if seen.result is None else dict(seen.result)
    details = list(result.get("failure_details", []))
    failed = _failed_ranks(seen.ranks, seen.rank_failure)
    listed = [_cause(failure) for failure in failed[:_LISTED] if not _has_listed(details, failure)]
    if len(failed) > _LISTED:
        listed.append({"note": f"{len(failed) - _LISTED} more ranks failed; see ranks"})
    count = max(result.get("failure_count") or 0, len(failed))
    return {**result, "passed": False, "failure_count": count, "failure_details": details + listed}


def _failed_ranks(ranks: list[RankData], cause: FailureData) -> list[FailureData]:
    """The failures that do not follow from another one, the ``cause`` of the trial first."""
    failures = [
        failure
        for rank in ranks
        if (failure := rank["failure"]) is not None and not rank["collateral"] and failure["phase"] != "cleanup"
    ]
    others = [failure for failure in failures if failure.get("rank") != cause.get("rank")]
    return [cause, *others]


def _cause(failure: FailureData) -> dict[str, Any]:
    cause = {key: value for key in _CAUSE if (value := failure.get(key)) is not None}
    return {**cause, "message": failure["message"].removeprefix(f"rank {failure.get('rank')}: ")[:_MESSAGE]}


def _has_listed(details: list[dict[str, Any]], failure: FailureData) -> bool:
    """Whether a rank has listed the failures itself because of which it returned ``passed=False``."""
    return failure["kind"] == "result" and any(detail.get("rank") == failure.get("rank") for detail in details)


def warnings_of(seen: Observed) -> list[str]:
    """What a result that says ``passed=True`` says against it, of every rank that returned one."""
    returned = {rank["rank"]: result for rank in seen.ranks if (result := rank.get("result")) is not None}
    if not returned:
        return [] if seen.result is None else doubts(seen.result)
    found: dict[str, list[int]] = {}
    for rank, result in returned.items():
        for text in doubts(result):
            found.setdefault(text, []).append(rank)
    return [
        f"rank {ranks[0]}" + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "") + f": {text}"
        for text, ranks in found.items()
    ]


def doubts(result: ResultData) -> list[str]:
    """Where a result contradicts its own ``passed=True``."""
    if not result["passed"]:
        return []
    found = []
    if (result.get("failure_count") or 0) > 0:
        found.append(f"failure_count={result['failure_count']}")
    if result.get("main_work_started") is False:
        found.append("main_work_started=False")
    configured = result.get("configured_iterations") or 0
    executed = result.get("executed_iterations")
    if configured > 0 and (result.get("total_iterations") if executed is None else executed) == 0:
        found.append(f"0 of {configured} iterations")
    return [f"passed=True, but {text}" for text in found]
