"""What can be refused of the options of the agent, before the first trial."""

from __future__ import annotations

from collections.abc import Callable

from pytest_aorta.launch.launch_mode import under_launcher
from pytest_aorta.launch.nodes.addressing import is_multi_node
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.elastic_options import ElasticOptions
from pytest_aorta.trials.execution import Execution

#: How the user has spelled an option and its value.
Spelling = Callable[[str, object], str]

#: torchrun has no option for these; its ranks are fresh interpreters.
_NOT_OF_TORCHRUN = ("exit_barrier_timeout", "node_rank", "start_method")

#: Rendezvous of several nodes.
_OF_NODES = ("c10d", "static")


def check_elastic(execution: Execution, spell: Spelling) -> None:
    """Refuse options that cannot act, and rendezvous that cannot work.

    Args:
        execution: of the trials.
        spell: for messages.

    Raises:
        RequestError: naming the option, and what would be valid.
    """
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
    if is_multi_node(options):
        _check_nodes(options, spell)


def _check_nodes(options: ElasticOptions, spell: Spelling) -> None:
    least, most = options.nnodes
    backend = options.rdzv_backend or "c10d"
    if options.node_rank is not None and options.node_rank >= most:
        raise RequestError(
            f"{_spelled(spell, 'node_rank', options.node_rank)}: of {most} nodes, the last one is {most - 1}"
        )
    if backend not in _OF_NODES:
        raise RequestError(f"{_spelled(spell, 'rdzv_backend', backend)}: several nodes meet by {', '.join(_OF_NODES)}")
    if backend == "static" and least != most:
        raise RequestError(
            f"{_spelled(spell, 'nnodes', options.nnodes)}: with rdzv_backend=static the number of nodes is fixed"
        )


def _spelled(spell: Spelling, name: str, value: object) -> str:
    text = ":".join(map(str, value)) if isinstance(value, tuple) else value
    return spell("elastic", f"{name}={text}")
