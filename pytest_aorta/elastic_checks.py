"""What can be refused of the options of the agent, before the first trial."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from pytest_aorta.common.request_error import RequestError
from pytest_aorta.launch.launch_mode import under_launcher
from pytest_aorta.launch.nodes.addressing import is_multi_node
from pytest_aorta.trials.elastic_options import ElasticOptions
from pytest_aorta.trials.execution import Execution

#: How the user has spelled an option and its value.
Spelling = Callable[[str, object], str]

#: torchrun has no option for these; its ranks are fresh interpreters.
_NOT_OF_TORCHRUN = ("exit_barrier_timeout", "node_rank", "start_method")


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
    _check_rendezvous(options, spell)


def _check_rendezvous(options: ElasticOptions, spell: Spelling) -> None:
    backend = options.rdzv_backend or "c10d"
    asked = _spelled(spell, "rdzv_backend", backend)
    if is_multi_node(options) and backend != "c10d":
        raise RequestError(f"{asked}: several nodes meet, and exchange what their ranks report, in a store of c10d")
    if backend in ("etcd", "etcd-v2"):
        if importlib.util.find_spec("etcd") is None:
            raise RequestError(f"{asked}: torch needs the package python-etcd for it, which is not installed here")
        if options.rdzv_endpoint is None:
            raise RequestError(f"{asked} needs rdzv_endpoint=HOST:PORT, where etcd listens")


def _spelled(spell: Spelling, name: str, value: object) -> str:
    text = ":".join(map(str, value)) if isinstance(value, tuple) else value
    return spell("elastic", f"{name}={text}")
