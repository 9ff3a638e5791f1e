"""``pytest --lf`` alone: the trials that failed last are collected again, with the options of their run."""

from __future__ import annotations

import pytest

from pytest_aorta.plugin.options import RECALLED, given_options
from pytest_aorta.plugin.roles import is_worker
from pytest_aorta.plugin.workload_files import workload_classes
from pytest_aorta.settings import SETTINGS

#: Where pytest's cache has the options of the last run with trials.
_OPTIONS = "aorta/options"

#: Whose values are not kept: variables may be secrets.
_SECRET = ("extra-env", "host")

#: Those of one run only.
_NOT_KEPT = ("resume", "report", "replay", "shard", "where", *_SECRET)


def remember(config: pytest.Config) -> None:
    """Keep the options of a run with trials for a later ``--lf``."""
    cache = getattr(config, "cache", None)
    if cache is not None and not config.option.collectonly:
        typed = given_options(config)
        kept = {option.name: typed[option.name] for option in SETTINGS if option.name in typed.keys() - {*_NOT_KEPT}}
        cache.set(_OPTIONS, {"given": kept, "lacking": [name for name in _SECRET if name in typed]})


def recall(config: pytest.Config) -> None:
    """Have only what failed collected, if the command line names neither files nor options of trials."""
    cache = getattr(config, "cache", None)
    if (
        cache is None
        or is_worker(config)
        or config.args_source is pytest.Config.ArgsSource.ARGS
        or given_options(config)
    ):
        return
    failed = {nodeid.partition("::")[0] for nodeid in cache.get("cache/lastfailed", {})}
    files = [config.rootpath / path for path in sorted(failed) if path.endswith(".py")]
    if "aorta" not in failed and not any(map(workload_classes, files)):
        return
    found = cache.get(_OPTIONS, {"given": {}, "lacking": []})
    if found["lacking"]:
        options = " and ".join(f"--aorta-{name}" for name in found["lacking"])
        raise pytest.UsageError(
            f"--lf: the trials that failed had {options}, whose values are not kept; give all options of trials again"
        )
    for option in SETTINGS:
        if option.name in found["given"]:
            setattr(config.option, option.ini, found["given"][option.name])
    config.args = [str(file) for file in files if file.exists()]
    config.stash[RECALLED] = True
