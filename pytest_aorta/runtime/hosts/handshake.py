"""The start of a service on a host, from the parent's side: connect, compare versions and code, start it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import execnet

from pytest_aorta._version import __version__
from pytest_aorta.runtime.hosts.code_digest import first_difference
from pytest_aorta.runtime.hosts.gateway import HostGateway
from pytest_aorta.runtime.hosts.host_main import BOOTSTRAP
from pytest_aorta.runtime.hosts.service_messages import CodeQuestion, HostFacts, ServiceOrder, ServiceReport
from pytest_aorta.runtime.hosts.specs import kind_of

#: Seconds in which a process ends whose connection has ended.
EXIT_LIMIT = 1.0


class RefusedError(Exception):
    """The service cannot be started. ``quote``: what the process has written belongs to the message."""

    def __init__(self, text: str, *, quote: bool = False) -> None:
        super().__init__(text)
        self.quote = quote


class Handshake:
    """Connects, checks that the code there is the code here, starts the service.

    Attributes:
        step: what it does at the moment, for messages.
        facts: about the interpreter there, once it has answered.
    """

    def __init__(self, gateway: HostGateway, service: str, argument: bytes, identity: Mapping[str, str]) -> None:
        self.step = "connecting"
        self.facts: HostFacts | None = None
        self._gateway = gateway
        self._service = service
        self._argument = argument
        self._identity = identity
        self._health: execnet.Channel | None = None  # execnet closes a channel that is not referred to any more

    def run(self, show_life: Callable[[Any], None]) -> execnet.Channel:
        """The channel to the service; signs of life go to ``show_life``. May block for as long as the host likes.

        Raises:
            RefusedError: one of these steps failed.
        """
        try:
            return self._run(show_life)
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(self._connection_problem(error), quote=True) from error

    def _run(self, show_life: Callable[[Any], None]) -> execnet.Channel:
        gateway = self._gateway.open()
        self.step = "looking for pytest-aorta there"
        channel, self.facts = _bootstrap(gateway)
        if problem := version_problem(self.facts):
            raise RefusedError(problem)

        self.step = "comparing the code there"
        self._health = health = gateway.newchannel()
        health.setcallback(show_life)
        redirect = kind_of(self._gateway.spec) != "socket"  # the output of a socket server is its owner's
        question: CodeQuestion = {"names": list(self._identity), "health": health, "redirect": redirect}
        channel.send(question)
        if difference := first_difference(self._identity, cast("dict[str, str]", channel.receive())):
            raise RefusedError(
                f"it would run other code: {difference}; install pytest-aorta {__version__} there from "
                "the same source, and have the same version of every workload file at the same path"
            )

        self.step = f"importing {self._service}"
        order: ServiceOrder = {"service": self._service, "argument": self._argument}
        channel.send(order)
        report = cast(ServiceReport, channel.receive())
        if report["state"] == "failed":
            raise RefusedError(f"cannot start {self._service}: {error_text(report['error'])}")
        return channel

    def _connection_problem(self, error: Exception) -> str:
        """Why there is no connection, as far as it is known, and what to do."""
        spec = self._gateway.spec
        kind = kind_of(spec)
        if kind == "socket":
            what = f"cannot connect: {error or type(error).__name__}"
            todo = f"is a server of execnet running there (python -m execnet.script.socketserver {spec.socket})?"
        elif isinstance(error, execnet.RemoteError):
            what, todo = f"refused: {error.formatted.strip().splitlines()[-1]}", "check its //chdir= and //nice="
        elif isinstance(error, FileNotFoundError | PermissionError):
            what, todo = f"cannot start {error.filename}: {error.strerror}", "is it there, and executable?"
        else:
            self._gateway.wait(EXIT_LIMIT)
            ended = self._gateway.how_ended()
            reason = str(error) or type(error).__name__
            what = f"failed while {self.step}: {f'ended with {ended}' if ended else reason}"
            todo = f"is {spec.python or sys.executable} a Python interpreter?"
            if kind != "popen":
                todo = (
                    f"does `ssh {spec.ssh or spec.vagrant_ssh} {spec.python or 'python'} -V` answer without asking for "
                    "anything or printing anything else (//python= names another interpreter)?"
                )
        return f"{what}; {todo}"


def _bootstrap(gateway: execnet.Gateway) -> tuple[execnet.Channel, HostFacts]:
    while True:
        channel = gateway.remote_exec(BOOTSTRAP)
        facts = cast(HostFacts, channel.receive())
        # A socket server may not have noticed yet that its main thread is done with //chdir= or //env:.
        if facts["main_thread"]:
            return channel, facts


def version_problem(facts: HostFacts) -> str | None:
    """Why the interpreter there, or what is installed for it, is of no use."""
    ours, here = __version__, "{}.{}".format(*sys.version_info)
    python, version, problem = facts["executable"], facts["version"], facts["problem"]
    if facts["python"] != here:
        return f"{python} is Python {facts['python']}, and this is {here}; name one of the same version with //python="
    if version is None and problem is not None and problem.endswith("No module named 'pytest_aorta'"):
        return (
            f"pytest-aorta is not installed for {python} on {facts['host']}; install it there, for instance with\n"
            f"  {python} -m pip install pytest-aorta=={ours}\nor name another interpreter with //python="
        )
    if version is not None and version != ours:
        return f"{python} has pytest-aorta {version}, but this is {ours}; install the same version there"
    if problem is not None:
        return f"pytest-aorta cannot be imported by {python}: {problem}"
    return None


def error_text(error: Mapping[str, str]) -> str:
    """An exception of the other side, as text."""
    return f"{error['type']}: {error['message']}\n{error['traceback']}".rstrip()
