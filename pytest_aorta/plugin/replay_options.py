"""What is left to select where all else is in the records of ``--aorta-replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_aorta.plan import Selection
from pytest_aorta.settings import SETTINGS, OptionError
from pytest_aorta.trials.execution import Resources

if TYPE_CHECKING:
    import pytest

#: Options that say what is not in the records.
_VALID = ("replay", "results-dir", "extra-env", "host")


def replay_selection(config: pytest.Config, selection: Selection) -> Selection:
    """What counts of a selection that has replays; other settings of an ini file or the environment do not.

    Raises:
        OptionError: an option on the command line contradicts the records.
    """
    for option in SETTINGS:
        if option.name not in _VALID and getattr(config.option, option.ini, None) is not None:
            valid = ", ".join(f"--aorta-{name}" for name in _VALID[1:])
            raise OptionError(
                f"{option.flag}: with --aorta-replay, the record says what is run; valid beside it are {valid}"
            )
    return Selection(
        replays=selection.replays,
        results_dir=selection.results_dir,
        extra_env=selection.extra_env,
        resources=Resources(hosts=selection.resources.hosts),
    )
