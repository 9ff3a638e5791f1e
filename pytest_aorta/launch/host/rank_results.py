"""The result of a trial whose ranks each return one."""

from __future__ import annotations

from pytest_aorta.trials.events import RankData, ResultData


def combined_result(records: list[RankData]) -> ResultData | None:
    """The result of a trial with ``result_scope`` ``rank_local``; ``None`` unless all ranks have returned one.

    Failures are counted together, and their details listed in the order of the ranks, each with its ``rank``; all else
    is rank 0's.
    """
    results = [record["result"] for record in records if record["result"] is not None]
    if not results or len(results) < len(records):
        return None
    firsts = [result.get("first_failure_iteration") for result in results]
    return {
        **results[0],
        "passed": all(result["passed"] for result in results),
        "failure_count": sum(result.get("failure_count", 0) for result in results),
        "first_failure_iteration": min((first for first in firsts if first is not None), default=None),
        "failure_details": [
            {"rank": record["rank"], **detail}
            for record, result in zip(records, results, strict=True)
            for detail in result.get("failure_details", [])
        ],
    }
