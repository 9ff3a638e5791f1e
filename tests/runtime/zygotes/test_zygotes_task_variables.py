"""Environment variables of a task are those that were given for it."""

from __future__ import annotations

import os

import pytest
from support.nursery import Nursery


def test_variables_are_set_before_the_interpreter_starts(nursery: Nursery) -> None:
    source = """
        import sys
        def run(payload, send):
            send({"value": [hash("text"), sys.flags.hash_randomization, sys.flags.optimize]})
        """
    environ = {"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "1"}
    zygotes = [nursery.start(source, environ=environ) for _ in range(2)]

    told = [nursery.run(zygote).told[0] for zygote in zygotes]

    assert told[0] == told[1]
    assert told[0][1:] == [0, 1]


def test_variables_are_those_that_were_given_and_no_others(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = nursery.spec(
        """
        import os
        def run(payload, send):
            send({"value": [name for name in os.environ if name.startswith("AORTA_TEST_VARIABLE")]})
        """,
        environ={"AORTA_TEST_VARIABLE_1": "1"},
    )
    monkeypatch.setenv("AORTA_TEST_VARIABLE_2", "set after the request was made")

    assert nursery.run(nursery.start_from(spec)).told == [["AORTA_TEST_VARIABLE_1"]]


def test_variables_and_folders_may_hold_any_bytes(nursery: Nursery) -> None:
    folder = nursery.path / "caf\udce9"
    folder.mkdir()
    zygote = nursery.start(
        """
        import os
        def run(payload, send):
            send({"value": [os.environb[b"ODD"].hex(), os.getcwdb().hex()]})
        """,
        environ={"ODD": "a\udcff\nb=c"},
        cwd=str(folder),
    )

    odd, cwd = nursery.run(zygote).told[0]

    assert bytes.fromhex(odd) == b"a\xff\nb=c"
    assert bytes.fromhex(cwd).endswith(b"caf\xe9")


def test_the_parent_s_own_variables_and_folder_are_never_changed(nursery: Nursery) -> None:
    before = dict(os.environ), os.getcwd()
    zygote = nursery.start(
        """
        import os
        def prepare(argument):
            os.environ["AORTA_TEST_X"] = "1"
            os.chdir("/")
            return {}
        def run(payload, send):
            os.environ["AORTA_TEST_X"] = "2"
        """
    )
    nursery.run(zygote)

    assert (dict(os.environ), os.getcwd()) == before
