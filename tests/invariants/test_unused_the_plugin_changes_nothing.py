"""Installed but unused, the plugin changes nothing; tests/downstream shows it with whole suites."""

from __future__ import annotations

from support.stage import Stage


def test_unused_it_is_not_to_be_seen(simple: Stage) -> None:
    result = simple.run_here("-v", "test_other.py")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("aorta: *")
    result.stdout.no_fnmatch_line("*= trials =*")
    assert not simple.results.exists()
    assert simple.left_running() == []
