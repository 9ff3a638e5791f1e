"""A Python program of a command cannot tell whether it runs in a fresh interpreter or in a fork of a prepared one."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from typing import Any

import pytest
from support.stage import Stage

#: Writes what it finds of its process into a file of its trial, and raises.
ASKS = """
'''Its docstring.'''
import atexit, gc, json, logging, multiprocessing, numpy, os, pickle, random, resource, signal, sys, threading, warnings
import asks_helper

class Thing:
    value = 3

class Dies:
    def __del__(self):
        os.write(1, b"deleted\\n")

def square(number):
    return number * number, __name__, sys.argv[1:-1], os.path.basename(sys.modules["__main__"].__file__)

def stream(it):
    said = [it.name, it.mode, it.encoding, it.errors, it.line_buffering, it.write_through, it.isatty(), it.fileno()]
    return [*said, type(it.buffer).__name__]

if __name__ == "__main__":
    own, here = vars(sys.modules["__main__"]), os.environ["AORTA_TRIAL_DIR"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(square, (7,))
    facts = {
        "arguments": [sys.argv[:-1], len(sys.argv)],
        "original arguments": sys.orig_argv[:-1],
        "executable": sys.executable,
        "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "names of __main__": sorted(name for name in own if name[:2] == "__"),
        "__main__": [own["__name__"], own["__doc__"], own["__package__"], own["__file__"], str(own["__builtins__"])],
        "its spec": getattr(own["__spec__"], "name", None),
        "its loader": [type(own["__loader__"]).__name__, own["__loader__"].name, own["__loader__"].path],
        "same module": own is globals() and sys.modules["__main__"].Thing is Thing,
        "pickled": pickle.loads(pickle.dumps(Thing())).value,
        "path": sys.path,
        "flags": list(sys.flags),
        "options": [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.getrecursionlimit()],
        "streams": [stream(it) for it in (sys.stdin, sys.stdout, sys.stderr)],
        "same streams": [sys.__stdin__ is sys.stdin, sys.__stdout__ is sys.stdout, sys.__stderr__ is sys.stderr],
        "input": sys.stdin.read(),
        "signals": {int(it): str(signal.getsignal(it)).split(" at ")[0] for it in signal.valid_signals() if it < 32},
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "variables": {name: it for name, it in os.environ.items() if name[:6] not in ("AORTA_", "TMPDIR", "PYTEST")},
        "own variables": sorted(name for name in os.environ if name.startswith("AORTA_")),
        "folder": os.getcwd(),
        "umask": os.umask(0o22),
        "niceness": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(it) for it in range(10)],
        "filters of warnings": [str(it) for it in warnings.filters],
        "logging": [logging.root.level, [str(it) for it in logging.root.handlers], logging.root.manager.disable],
        "threads": [threading.current_thread().name, threading.main_thread() is threading.current_thread()],
        "number of threads": threading.active_count(),
        "garbage": [gc.isenabled(), gc.get_threshold()],
        "hooks": [sys.gettrace(), sys.getprofile(), sys.breakpointhook.__name__],
        "spawned": spawned,
        "helper": [asks_helper.__file__, asks_helper.WHO],
        "group": os.getpgid(0) == os.getpgid(os.getppid()),
    }
    numbers = [random.random(), float(numpy.random.rand()), os.getpid()]
    with open(f"{here}/facts.json", "w") as file:
        json.dump([facts, numbers], file)
    left_open = open(f"{here}/left_open", "w")
    left_open.write("kept")
    dies = Dies()
    dies.itself = dies
    atexit.register(print, "at exit")
    print("before the end")
    threading.Timer(0.1, print, ["a thread has ended"]).start()
    asks_helper.fail({} if sys.argv[-1] == "0" else {"nothing": 1})
"""

HELPER = """
import os
WHO = __name__

def fail(found):
    os.write(2, b"written past Python\\n")
    try:
        raise ValueError("inner")
    except ValueError:
        found["missing"]
"""


def asked(stage: Stage, *options: str) -> list[tuple[dict[str, Any], list[Any], list[str]]]:
    """What each trial of the program has found, its random numbers, and what it has written."""
    stage.run("--aorta-trials", "2", *options).assert_outcomes(failed=2)
    found = []
    for path in sorted(stage.results.glob("*/trial_*/")):
        facts, numbers = json.loads((path / "files" / "facts.json").read_text())
        files = ("stdout.log", "stderr.log", "files/left_open")
        found.append((facts, numbers, [(path / name).read_text() for name in files]))
    shutil.rmtree(stage.results)
    return found


@pytest.mark.parametrize(
    "words",
    [
        "asks.py --lr 1 {trial}",
        pytest.param("-m asks --lr 1 {trial}", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("-u inner/../asks.py {trial}", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_properties_of_a_fresh_interpreter(stage: Stage, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # which commands get, unless they start as typed
    stage.write(asks=ASKS, asks_helper=HELPER)
    stage.write_file("inner/nothing.txt", "")
    command = ("--aorta-command", f"{shlex.quote(sys.executable)} {words}")
    fresh, _, written = asked(stage, *command, "--aorta-launcher", "as-typed")[0]
    forks = asked(stage, *command, "--aorta-isolation", "fork")
    for facts, _, also_written in forks:
        assert facts == fresh
        assert also_written == written
    assert written[0].splitlines() == ["before the end", "a thread has ended", "at exit", "deleted"]
    assert written[2] == "kept"
    assert len({tuple(numbers) for _, numbers, _ in forks}) == 2


#: Ends in a way of its own, by number.
ENDS = """
import os, signal, sys, threading
way = int(sys.argv[1])
if way == 1: sys.exit(300)
if way == 2: sys.exit("words")
if way == 3: os.kill(os.getpid(), signal.SIGTERM)
if way == 4: raise SystemExit("several", 2)
if way == 5: os.abort()
if way == 6: exec("a b")
if way == 7:
    sys.excepthook = lambda *error: print("hooked", error[0].__name__)
    raise OSError(2, "gone")
if way == 8: os._exit(9)
if way == 9: threading.Thread(target=lambda: 1 / 0).start()
if way == 10: raise KeyboardInterrupt
"""


@pytest.mark.slow
def test_its_ends_are_those_of_a_fresh_interpreter(stage: Stage) -> None:
    stage.write(ends=ENDS)
    options = ("--aorta-command", f"{shlex.quote(sys.executable)} ends.py {{trial}}", "--aorta-trials", "11")
    found = []
    for how in (("--aorta-launcher", "as-typed", "--aorta-observe", "exits"), ("--aorta-isolation", "fork")):
        stage.run(*options, *how).assert_outcomes(passed=2, failed=9)
        trials = sorted(stage.trials().values(), key=lambda trial: int(trial["trial_index"]))
        logs = [(stage.results / "command-ends" / f"trial_{index}" / "stderr.log").read_text() for index in range(11)]
        logs = [re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"(?s)Fatal Python error.*", "fatal", text)) for text in logs]
        keys = ("kind", "type", "message", "signal", "exit_code", "traceback")
        failures = [{key: (trial["failure"] or {}).get(key) for key in keys} for trial in trials]
        found.append([(trial["exit_status"], trial["result"]["metrics"]["returncode"]) for trial in trials])
        assert failures[10]["signal"] == "SIGINT"
        failures[5].pop("traceback")  # whose last frames, of a crash, are those of the process that was forked
        found.append(list(zip(logs, failures, strict=True)))
        shutil.rmtree(stage.results)
    assert found[0] == found[2]
    assert found[1] == found[3]


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_what_no_fork_can_stand_for_runs_as_typed(stage: Stage) -> None:
    stage.write(tells="import sys\nprint('prepared' if 'pytest_aorta' in sys.modules else 'fresh')")
    stage.write_file("hidden/tells.py", (stage.path / "tells.py").read_text())
    stage.write_file("hidden/random.py", "")
    python = shlex.quote(sys.executable)
    commands = [f"{python} tells.py", f"{python} -B tells.py", f"{python} hidden/tells.py", f"env {python} tells.py"]
    result = stage.run(*(f"--aorta-command={command}" for command in commands), "--aorta-isolation", "fork")
    result.assert_outcomes(passed=4)
    said = {path.parent.parent.name: path.read_text().strip() for path in stage.results.glob("*/trial_0/stdout.log")}
    assert sorted(said.values()) == ["fresh", "fresh", "fresh", "prepared"]
    assert said["command-tells-tells.py"] == "prepared"
    shutil.rmtree(stage.results)
    for options in (("--aorta-launcher", "as-typed"), ()):
        stage.run(f"--aorta-command={commands[0]}", *options).assert_outcomes(passed=1)
        assert (stage.results / "command-tells" / "trial_0" / "stdout.log").read_text() == "fresh\n"
