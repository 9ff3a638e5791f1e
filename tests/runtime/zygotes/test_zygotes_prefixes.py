"""Zygotes behind launcher prefixes: those that pass everything on, and those that pass on nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.nursery import Nursery
from support.processes import is_gone, wait_for, wait_until

from pytest_aorta.runtime.channel import Channel, wait
from pytest_aorta.runtime.process_tree import VARIABLE
from pytest_aorta.runtime.zygote import (
    TAG_WORD,
    PrefixFacts,
    PrefixSocket,
    Zygote,
    ZygoteError,
    code_behind_prefix,
    prefix_text,
)

#: Stands in for sudo, ssh and srun: closes descriptors, drops variables, goes elsewhere, stays in between.
CLOSES = (
    "import os, subprocess, sys; os.chdir('/'); sys.exit(subprocess.run(sys.argv[1:], env={'SET': 'by it'}).returncode)"
)
CLOSING = (sys.executable, "-S", "-c", CLOSES)

SAYS = """
    import os
    def run(payload, send):
        send({"value": [os.environ.get(name) for name in payload] + [os.getcwd()]})
"""


def exit_code(*command: str) -> int:
    """The exit code of a command, 127 without one."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode
    except OSError:
        return 127


def behind(nursery: Nursery, source: str, prefix: tuple[str, ...] = CLOSING, **restored: str) -> Zygote:
    mark = {"AORTA_TEST": nursery.mark}
    return nursery.start(source, command=(*prefix, sys.executable), behind=PrefixFacts({**mark, **restored}))


def test_what_a_prefix_drops_is_restored_and_what_it_sets_is_kept(nursery: Nursery) -> None:
    zygote = behind(nursery, SAYS, CELL="a value\nof two lines", LARGE="x" * 100_000)

    with open(os.devnull) as file:
        [told] = nursery.run(zygote, ["CELL", "SET", "HOME", VARIABLE], descriptors=[file.fileno()]).told

    assert told == ["a value\nof two lines", "by it", None, zygote.tag, str(nursery.path)]
    assert len(nursery.run(zygote, ["LARGE"]).told[0][0]) == 100_000


@pytest.mark.parametrize(
    "prefix",
    [
        ("sh", "-c", 'exec env -i sh -c "$*"', "sh"),  # a shell splits the words again, as with ssh
        pytest.param(
            ("sudo", "-n"),
            marks=pytest.mark.skipif(exit_code("sudo", "-n", "true") != 0, reason="no sudo without a password"),
        ),
    ],
)
def test_real_prefixes(nursery: Nursery, prefix: tuple[str, ...]) -> None:
    zygote = behind(nursery, SAYS, prefix, CELL="a b; c")

    assert nursery.run(zygote, ["CELL"]).told == [["a b; c", str(nursery.path)]]


def test_a_prefix_that_passes_variables_on_may_change_them(nursery: Nursery) -> None:
    zygote = behind(nursery, SAYS, ("env", "-u", "GONE", "CELL=changed"), GONE="1")

    assert nursery.run(zygote, ["CELL", "GONE"]).told == [["changed", None, str(nursery.path)]]


def test_the_folder_of_the_socket_is_private_and_gone_once_the_zygote_is_ready(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = nursery.path / ("long" * 50)  # more than the address of a socket may have
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    zygote = behind(nursery, "def run(payload, send): send({'value': 1})")
    [private] = list(folder.glob("aorta-tmp-*"))
    assert private.stat().st_mode & 0o777 == 0o700

    zygote.wait_ready()

    assert list(folder.glob("aorta-tmp-*")) == []
    assert nursery.run(zygote).told == [1]


def test_what_does_not_know_the_tag_is_given_nothing(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Channel.pair()
    door = PrefixSocket(theirs, "the tag")
    address, tag = door.arguments()
    assert tag == "the tag"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(address)
        stranger.send(b"another tag")
        door.admit()
        assert stranger.recv(1) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as friend:
        friend.connect(address)
        friend.send(b"the tag")
        door.admit()
        _, [descriptor], _, _ = socket.recv_fds(friend, 1, 1)
    Channel(descriptor).send({"got": "it"})
    assert ours.receive() == {"got": "it"}
    door.close()
    door.close()
    assert not os.path.exists(os.path.dirname(address))


# How it fails.


def error_of(zygote: Zygote) -> ZygoteError:
    with pytest.raises(ZygoteError) as caught:
        zygote.wait_ready()
    return caught.value


def test_a_host_that_does_not_see_the_folder_is_told_what_is_needed(nursery: Nursery) -> None:
    moved = "import subprocess, sys; sys.argv[-2] = '/nowhere/zygote.sock'; subprocess.run(sys.argv[1:])"
    error = error_of(behind(nursery, "", (sys.executable, "-c", moved)))

    assert "No such file or directory: '/nowhere'" in str(error)
    assert "has to run on the same host, and to see that folder" in str(error)


def test_a_crash_behind_a_prefix_is_that_signal(nursery: Nursery) -> None:
    shell = ("sh", "-c", '"$@"; exit $?', "sh")
    error = error_of(behind(nursery, "import os; os.abort()", shell))

    assert (error.returncode, error.phase) == (-signal.SIGABRT, "import")
    assert [code_behind_prefix(code) for code in (0, 3, 128, 137, 255, -9)] == [0, 3, 128, -9, 255, -9]


def test_a_command_in_a_message_has_no_values_of_variables() -> None:
    words = ("env", "TOKEN=hunter2", "docker", "run", "--env=KEY=hunter2", "-eKEY=hunter2", "--name=x", "a b")
    assert prefix_text(words) == "env TOKEN=... docker run --env=KEY=... -eKEY=... --name=x 'a b'"


# How it ends.

FOREVER = "def run(payload, send): import time; time.sleep(600)"

IMPORTS_FOREVER = "import time\nprint('importing', flush=True)\nopen('begun', 'w').write('1')\ntime.sleep(600)"


def importing(nursery: Nursery, zygote: Zygote) -> psutil.Process:
    """The process that imports, which is no child of this one."""
    waiting = psutil.Process()
    assert zygote._socket is not None
    while not (nursery.path / "begun").exists():
        if wait([zygote._socket.fileno()], 0.1):
            zygote._socket.admit()
    return waiting.children(recursive=True)[-1]


def test_an_import_behind_a_prefix_ends_with_its_channel(nursery: Nursery) -> None:
    zygote = behind(nursery, IMPORTS_FOREVER)
    process = importing(nursery, zygote)

    zygote.control.hang_up()  # as the end of this process would

    wait_until(lambda: is_gone(process.pid), "the end of the import")
    error_of(zygote)


def test_a_client_that_is_killed_leaves_nothing(nursery: Nursery) -> None:
    """As that of docker: what it has started is no child of it, and does not end with it."""
    detached = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:], start_new_session=True).wait())"
    zygote = behind(nursery, FOREVER, (sys.executable, "-c", detached))
    zygote.wait_ready()
    nursery.submit(zygote)

    zygote._process.kill()
    wait_until(lambda: not zygote.alive(), "the end of the client")
    zygote.close()

    wait_until(lambda: nursery.alive() == [], "the end of all")


def test_what_does_not_end_is_ended_by_the_prefix_s_own_command(nursery: Nursery) -> None:
    """What the prefix has started neither connects nor ends: only the command knows it."""
    start = f"sleep 600 & echo $! > {nursery.path}/pid.$0; wait"
    stop = ("sh", "-c", f"kill -9 $(cat {nursery.path}/pid.$0)", TAG_WORD)
    command = ("setsid", "--wait", "env", "-i", "sh", "-c", start, TAG_WORD, sys.executable)
    zygote = nursery.start("", command=command, behind=PrefixFacts(stop=stop))
    pid = wait_for(lambda: _number(nursery.path / f"pid.{zygote.tag}"), "the process")

    zygote.close()

    wait_until(lambda: is_gone(pid), "its end")


def _number(path: Path) -> int | None:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.mark.skipif(exit_code(*NAMESPACE, "true") != 0, reason="no right to make namespaces with unshare")
def test_the_end_of_the_zygote_is_the_end_of_all_in_a_namespace_of_processes(nursery: Nursery) -> None:
    """Where pids are others than here, and the first process ignores most signals."""
    zygote = nursery.start(FOREVER, command=(*NAMESPACE, sys.executable))
    zygote.wait_ready()
    nursery.submit(zygote)

    zygote.close()

    wait_until(lambda: nursery.alive() == [], "the end of all")
