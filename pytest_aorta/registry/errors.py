"""What can go wrong between a name and the thing it names."""

from __future__ import annotations

from pytest_aorta.settings import RequestError


class RegistryError(RequestError):
    """A name, a plugin's payload or a sidecar file that cannot be used; the message says which and why."""


class RegistryCollisionError(RegistryError):
    """One name offered by two sources. There is no winner: a table must never depend on the order of ``sys.path``."""


class UnknownWorkloadError(RegistryError):
    """No workload has that name."""


class UnknownMitigationError(RegistryError):
    """No mitigation has that name."""


class UnknownEnvironmentError(RegistryError):
    """No environment has that name."""


class UnknownCollectorError(RegistryError):
    """No collector has that name."""


def one_line_of(error: BaseException) -> str:
    """Type and message of what a plugin has raised, on one line, so that a list of problems is a list of lines."""
    from pytest_aorta.common.exception_text import describe_exception  # only here: most runs have no broken plugin

    found = describe_exception(error)
    return " ".join(f"{found['type']}: {found['message']}".split())
