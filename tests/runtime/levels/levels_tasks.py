"""What the tasks of these tests do. Imported by the processes that run them, hence without anything heavy."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

#: Seconds after which something that hangs gives up, so that a broken test does not hang for ever.
PATIENCE = 60.0


def nothing(args: Any) -> None:
    """Be a task."""


def echo(args: Any) -> dict[str, Any]:
    return {"scalars": list(args.scalars), "config": args.config}


def own_pid(args: Any) -> int:
    return os.getpid()


def interpreters_of_workers(args: Any) -> dict[str, int]:
    """How many interpreters run here with a worker of this process, without a thread beside it and with one."""
    import psutil

    from pytest_aorta.runtime import Worker

    over, found = threading.Event(), {}
    for beside in ("alone", "beside a thread"):
        if beside != "alone":
            threading.Thread(target=over.wait, args=(PATIENCE,)).start()
        with Worker(3, num_sub_workers=1, grace=0.1) as worker:
            worker.init()
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            found[beside] = len({tuple(process.cmdline()) for process in processes})
    over.set()
    return found


def own_number(item: int) -> int:
    return item


def boom(args: Any) -> NoReturn:
    raise ValueError(*args.scalars)


def gate(args: Any) -> str:
    """Say that it has begun, and go on when the gate of its name, or the main gate, is open."""
    folder, name = args.scalars
    note(folder, f"{name} began")
    wait_for(f"{folder}/{name}.open", f"{folder}/all.open")
    note(folder, f"{name} ended")
    return str(name)


def gate_against_sigterm(args: Any) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return gate(args)


def gate_then_boom(args: Any) -> NoReturn:
    raise ValueError(gate(args))


def gate_then_die(args: Any) -> NoReturn:
    gate(args)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def either(args: Any) -> Any:
    """A group has one callable; what a member does is its last argument."""
    from pytest_aorta.runtime import SlotArgs

    *rest, name = args.scalars
    return globals()[name](SlotArgs((), rest))


def note(folder: str, word: str) -> None:
    """Append a line, in one piece."""
    fd = os.open(f"{folder}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{word}\n".encode())
    os.close(fd)


def die(args: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_times(args: Any) -> None:
    if args.scalars[0] == "die":
        die(args)


def end_with(args: Any) -> None:
    os._exit(args.scalars[0])


def leave_with(args: Any) -> NoReturn:
    sys.exit(args.scalars[0])


def crash(args: Any) -> None:
    """A segmentation fault, without a core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def say(args: Any) -> None:
    """Print, and write past Python."""
    print(args.scalars[0])
    print(args.scalars[1], file=sys.stderr)
    os.write(1, f"{args.scalars[2]}\n".encode())


def threads_and_cores(args: Any) -> dict[str, Any]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")
    return {
        "threads": {name: os.environ.get(name) for name in names},
        "cores": sorted(os.sched_getaffinity(0)),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def close_everything_and_hang(args: Any) -> None:
    os.closerange(3, 4096)
    time.sleep(PATIENCE)


def fork_and_leave(args: Any) -> int:
    """Leave a grandchild behind that holds whatever we hold; its pid."""
    pid = os.fork()
    if pid == 0:
        time.sleep(PATIENCE)
        os._exit(0)
    return pid


def return_twice(args: Any) -> str:
    return "child" if os.fork() == 0 else "parent"


def fork_and_exit(args: Any) -> int:
    """Ends its fork as many programs do."""
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def use_multiprocessing(args: Any) -> list[int]:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


def use_threads(args: Any) -> list[int]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(abs, range(-3, 0)))


class Mute(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Fatal(Exception):
    """Ends the process that asks what it is."""

    def __str__(self) -> str:
        sys.exit(3)


class Liar(dict[str, Any]):
    """Cannot be looked at."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise OSError("look away")


def raise_mute(args: Any) -> NoReturn:
    raise Mute


def raise_fatal(args: Any) -> NoReturn:
    raise Fatal


def raise_interrupt(args: Any) -> NoReturn:
    raise KeyboardInterrupt


def raise_huge(args: Any) -> NoReturn:
    raise ValueError("x" * 5_000_000)


def bad_preparation() -> NoReturn:
    raise LookupError("there is no such data set")


def fatal_preparation() -> NoReturn:
    os._exit(9)


def endless_preparation() -> None:
    time.sleep(PATIENCE)


def prepare_by_hand() -> None:
    """Leaves something that tasks of this process find."""
    os.environ["LEVELS_PREPARED"] = str(os.getpid())


def is_prepared(args: Any) -> bool:
    return os.environ.get("LEVELS_PREPARED") == str(os.getpid())


def wait_for(*paths: str) -> None:
    """Wait until one of these files is there."""
    give_up = time.monotonic() + PATIENCE
    while not any(map(os.path.exists, paths)):
        if time.monotonic() > give_up:
            raise TimeoutError(paths)
        time.sleep(0.002)
