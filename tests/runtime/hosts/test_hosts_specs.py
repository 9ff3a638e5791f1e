"""How hosts are named."""

from __future__ import annotations

import pytest

from pytest_aorta.runtime.hosts import expand_specs, without_values


def test_a_number_before_a_star_multiplies_and_what_execnet_understands_stays_as_it_is() -> None:
    texts = [
        "ssh=me@there//python=python3.11",
        "popen//python=python3 -X dev//chdir=/tmp//env:A=1//env:EMPTY=//id=left//nice=5",
        "ssh=-p 2222 me@there//ssh_config=/home/me/config",
    ]
    assert expand_specs(["2*popen", *texts]) == ["popen", "popen", *texts]


def test_what_cannot_be_a_host_is_named_with_its_problem() -> None:
    cases: list[tuple[str, str]] = [
        ("", "how to reach it"),
        ("python=python3", "how to reach it"),
        ("localhost", r"how to reach it; valid are popen, ssh=\[USER@\]HOST, N"),
        ("popen//ssh=there", "popen and ssh exclude each other"),
        ("popen//pyhton=python3", "'pyhton' is unknown"),
        ("popen//via=gw0", "'via' is unknown or of no use here"),
        ("popen//execmodel=eventlet", "'execmodel' is unknown or of no use here"),
        ("popen//python=", "'python' needs a value"),
        ("popen//chdir", "'chdir' needs a value"),
        ("popen//env:=1", "'env:' is unknown"),
        ("ssh", "'ssh' needs a value"),
        ("socket=there:1", "how to reach it"),
        ("popen//id=a//id=b", "'id' is there twice"),
        ("0*popen", "expected 1 to 9999"),
        ("x*popen", "'x\\*popen'"),
        ("popen//id=twin", "same id"),
    ]
    for text, problem in cases:
        with pytest.raises(ValueError, match=problem) as caught:
            expand_specs(["popen", "popen//id=twin", text])

        assert without_values(text).partition("*")[0] in str(caught.value)
