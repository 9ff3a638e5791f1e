"""Importing modules in a zygote, or in a branch of one, on behalf of the trials that are forked from it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.visible_state import MEMOS
from pytest_aorta.launch.trial_payload import Refused
from pytest_aorta.runtime.process_tree import reasons_against_forking


class PreloadError(ImportError):
    """A module that the user wants to be imported in advance cannot be."""


def preload(modules: Iterable[str]) -> Refused:
    """Import modules in order, up to the first one whose import fails, or makes forks unsafe."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            described = describe_exception(error)
            return {"module": name, "why": f"raises {described['type']}: {described['message']}"}
        if reasons := reasons_against_forking():
            return {"module": name, "why": ", ".join(reasons)}
    return {}


def preload_on_cores(modules: Iterable[str], cores: Sequence[int] | None) -> Refused:
    """The same, on the cores that the trials will have: libraries count them when they are loaded."""
    before = os.sched_getaffinity(0)
    memos = [name for name in MEMOS if name not in os.environ]
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        return preload(modules)
    finally:
        os.sched_setaffinity(0, before)
        for name in memos:
            os.environ.pop(name, None)


def preload_as_asked(modules: Iterable[str]) -> None:
    """Import what ``--aorta-preload`` names.

    Raises:
        PreloadError: one of them cannot be imported, or not in a process that is to be forked.
    """
    refused = preload(modules)
    if refused:
        raise PreloadError(f"--aorta-preload {refused['module']}: its import in advance {refused['why']}")
