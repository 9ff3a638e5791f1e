"""``--aorta-submit`` and ``--aorta-dry-run``: where the items of recipes go instead of being run."""

from __future__ import annotations

import pytest

from pytest_aorta.plugin.options import read_option
from pytest_aorta.plugin.xdist_roles import is_worker
from pytest_aorta.settings import OptionError

#: Name of the plugin.
SUBMISSION = "aorta_submission"


def register_submission(config: pytest.Config) -> None:
    """Submit instead of running, where that is asked for; not in an xdist worker, and not in a job of ours.

    Raises:
        pytest.UsageError: an option has a value that it cannot take.
    """
    try:
        cluster, is_dry = read_option(config, "submit"), bool(read_option(config, "dry-run"))
        limit, sure = read_option(config, "max-jobs"), bool(read_option(config, "yes"))
    except OptionError as error:
        raise pytest.UsageError(str(error)) from None
    if (cluster is None and not is_dry) or is_worker(config):
        return
    from pytest_aorta.plugin.recipes.in_job import is_in_job

    if is_in_job():
        return
    # Nothing is run, so nothing is distributed: xdist looks at these when all others have been configured.
    for name, value in (("dist", "no"), ("numprocesses", None), ("tx", [])):
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.pluginmanager.register(SubmissionHooks(config, cluster, is_dry, limit, sure), SUBMISSION)


class SubmissionHooks:
    """Takes the place of pytest's loop over the items."""

    def __init__(self, config: pytest.Config, cluster: str | None, is_dry: bool, limit: int | None, sure: bool) -> None:
        self._config = config
        self._cluster = None if cluster == "auto" else cluster
        self._is_dry = is_dry
        self._limit = limit
        self._sure = sure

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Submit what would be run; errors of the collection are pytest's own loop's."""
        option = session.config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None
        from pytest_aorta.plugin.recipes.submitting import Submission

        Submission(session, self._cluster, self._limit).run(is_dry=self._is_dry, sure=self._sure)
        return True
