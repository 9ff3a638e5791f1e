"""What can be refused of a selection as a whole, before its first trial, from pytest and from Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from pytest_aorta.launch.launch_mode import check_step, check_tasks, is_multi_node, under_launcher
from pytest_aorta.plan import Selection
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.execution import Execution

#: How the user has spelled an option and its value.
Spelling = Callable[[str, object], str]

#: torchrun has no option for these; its ranks are fresh interpreters.
_NOT_OF_TORCHRUN = ("exit_barrier_timeout", "node_rank", "start_method")


def check_elastic(execution: Execution, spell: Spelling) -> None:
    options = execution.elastic
    given = options.given()
    if execution.launcher == "external" or (execution.launcher == "auto" and under_launcher()):
        for name, value in given.items():
            raise RequestError(
                f"{_spelled(spell, name, value)}: pytest is a rank, and the launcher that has started it is the agent; "
                "give the option to that launcher"
            )
    if execution.launcher == "torchrun":
        for name in _NOT_OF_TORCHRUN:
            if name in given:
                raise RequestError(
                    f"{_spelled(spell, name, given[name])}: torchrun has no such option, or does nothing with it; use "
                    f"{spell('launcher', 'auto')}"
                )
        for name in ("master_addr", "master_port"):
            if name in given and options.rdzv_backend != "static":
                raise RequestError(
                    f"{_spelled(spell, name, given[name])}: torchrun uses it with rdzv_backend=static only"
                )
    least, most = options.nnodes
    if is_multi_node(options) and options.node_rank is not None and options.node_rank >= most:
        raise RequestError(
            f"{_spelled(spell, 'node_rank', options.node_rank)}: of {most} nodes, the last one is {most - 1}"
        )
    if is_multi_node(options) and options.rdzv_backend == "static" and least != most:
        raise RequestError(
            f"{_spelled(spell, 'nnodes', options.nnodes)}: with rdzv_backend=static the number of nodes is fixed"
        )


def _spelled(spell: Spelling, name: str, value: object) -> str:
    text = ":".join(map(str, value)) if isinstance(value, tuple) else value
    return spell("elastic", f"{name}={text}")


def check_resources(selection: Selection, spell: Spelling, *, parallel: bool = False) -> None:
    """Refuse devices that are not there or cannot be leased, and trials side by side where that cannot be.

    Args:
        selection: what the user asked for.
        spell: for messages.
        parallel: whether there are several processes that start trials, as with ``-n``.

    Raises:
        RequestError: naming the options.
    """
    check_elastic(selection.execution, spell)
    _check_slots(selection, spell, parallel)
    _check_devices(selection, spell)
    if is_multi_node(selection.execution.elastic):
        if not selection.resources.hosts:
            check_step(selection.execution.elastic)
        for given, option in ((parallel, "-n"), (selection.resources.slots > 1, spell("slots", "").rstrip(" ="))):
            if given:
                raise RequestError(
                    f"{spell('elastic', 'nnodes')}: trials of several nodes run one at a time, without {option}"
                )


def _check_slots(selection: Selection, spell: Spelling, parallel: bool) -> None:
    resources = selection.resources
    if resources.own_cores and selection.execution.isolation == "none":
        raise RequestError(
            f"{spell('slots', 'own-cores')} and {spell('isolation', 'none')}: "
            "a trial in pytest's own process has that process's cores"
        )
    if resources.total_slots == 1 and not resources.hosts:
        return
    option = spell("host", "").rstrip(" =") if resources.hosts else spell("slots", resources.slots)
    if parallel:
        raise RequestError(f"{option} and -n both run trials side by side; use one of them")
    if under_launcher():
        raise RequestError(f"{option}: pytest is a rank of an outer launcher, and runs one trial at a time")


def _check_devices(selection: Selection, spell: Spelling) -> None:
    from pytest_aorta.runtime.resources.devices import choose_devices, devices_text, find_devices
    from pytest_aorta.runtime.resources.leases import LeaseError, Leases

    devices = selection.resources.devices
    if devices is None:
        return
    option = spell("devices", devices_text(devices))
    if selection.execution.isolation == "none":
        raise RequestError(
            f"{option} and {spell('isolation', 'none')}: a trial in pytest's own process has that process's devices"
        )
    if devices and under_launcher():
        raise RequestError(f"{option}: pytest is a rank of an outer launcher, which gives out the devices")
    if devices and not selection.resources.hosts:
        try:
            Leases(choose_devices(devices, find_devices()))
        except (ValueError, LeaseError, OSError) as error:
            raise RequestError(f"{option}: {error}") from None


def check_results(selection: Selection, results: Path, source: str) -> None:
    """Make the results directory, or say why it cannot be used.

    Args:
        selection: what the user asked for.
        results: the path of the directory from here.
        source: where the user has given it, for messages.

    Raises:
        RequestError: it is not a directory that can be written to, or other tasks of SLURM run the same trials there.
    """
    check_tasks(selection.results_dir, selection.execution.elastic)
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise RequestError(f"{source}: cannot write there: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise RequestError(f"{source}: {error}") from None
