"""Checks with other versions than those of ``constraints.txt``: ``uvx nox -s compat`` (uv is in the extra ``test``)."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PAGE = ROOT / "docs" / "reference" / "compatibility.md"

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["compat"]

#: Python, pytest, torch; an empty version is the newest. The rows hold every pair of a pytest and a torch, and each
#: Python with the newest or the oldest of both: nothing here depends on three of them at once. pytest-xdist and
#: pytest-timeout are the newest, which are also the oldest that pyproject.toml allows.
CELLS = (
    ("3.10", "8.4", "2.6"),
    ("3.10", "", ""),
    ("3.11", "8.4", "2.9"),
    ("3.11", "9.0", ""),
    ("3.12", "9.0", "2.6"),
    ("3.12", "", "2.9"),
    ("3.13", "", "2.6"),
    ("3.13", "9.0", "2.9"),
    ("3.13", "8.4", ""),
    ("3.14", "8.4", "2.9"),
    ("3.14", "", ""),
)

#: What uses private names of pytest, xdist, pytest-timeout, torch and execnet, and real trials and ranks.
SMOKE = (
    "tests/plugin/test_failure_reports.py",
    "tests/plugin/test_live_view.py",
    "tests/plugin/test_options.py",
    "tests/plugin/test_plugin_manners.py",
    "tests/plugin/test_plugin_slots.py",
    "tests/plugin/test_plugin_statuses.py",
    "tests/plugin/ordinary_tests/test_trials_and_fixtures.py",
    "tests/invariants/test_xdist_payloads_are_plain.py",
    "tests/collectors/test_numerics.py",
    "tests/launch/child/test_recorder.py",
    "tests/launch/child/test_rendezvous.py",
    "tests/probe/test_probe_torch.py",
    "tests/runtime/hosts/test_hosts.py",
    "tests/runtime/levels/test_levels_tensors.py",
    "tests/runtime/memory/test_torch_storage.py",
    "tests/acceptance/test_elastic.py::test_the_life_of_the_worker_group_and_the_result_of_each_rank_are_recorded",
    "tests/acceptance/test_elastic.py::test_a_rank_that_fails_once_is_started_again",
    "tests/acceptance/test_elastic.py::test_a_rank_that_ignores_sigterm_is_not_waited_for",
    "tests/acceptance/test_elastic.py::test_no_rank_outlives_its_agent",
    "tests/acceptance/test_elastic.py::test_the_flight_recorder_tells_who_is_missing_where_stacks_do_not",
    "tests/acceptance/test_elastic.py::test_the_options_reach_the_ranks_and_local_results_are_put_together",
)


@cache
def _wheel() -> Path:
    folder = tempfile.mkdtemp(prefix="pytest-aorta-wheel-")
    subprocess.run(["uv", "build", "--quiet", "--out-dir", folder, str(ROOT)], check=True)
    [wheel] = Path(folder).glob("*.whl")
    return wheel


def _cells() -> list[object]:
    return [nox.param(*cell, id=f"{cell[0]}-pytest{cell[1]}-torch{cell[2]}") for cell in CELLS]


@nox.session
@nox.parametrize("python,pytest,torch", _cells())
def compat(session: nox.Session, pytest: str, torch: str) -> None:
    """The smoke tests, on the built wheel, with one row of versions; the page of versions is told how it ended."""
    wanted = [f"{name}=={version}.*" if version else name for name, version in (("pytest", pytest), ("torch", torch))]
    options = ("-n", "2", "-m", "not long", "--tb", "short", "-p", "no:cacheprovider", *session.posargs)
    result = "failed"
    try:
        session.install(*wanted, "hypothesis", "jsonschema", "pytest-xdist", "pytest-timeout", str(_wheel()))
        # The tests without the packages beside them, which would hide the installed ones; and nowhere below this
        # checkout, whose configuration pytest would find.
        with tempfile.TemporaryDirectory(prefix="pytest-aorta-compat-") as folder, session.chdir(folder):
            shutil.copytree(ROOT / "tests", "tests", ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("conftest.py", "pyproject.toml"):
                shutil.copy(ROOT / name, name)
            session.run("pytest", *options, *SMOKE)
        result = "passed"
    finally:
        _note((str(session.python), pytest, torch), result, _installed(session))
        shutil.rmtree(session.virtualenv.location)  # gigabytes


def _installed(session: nox.Session) -> str:
    """Versions of what varies, as ``pip freeze`` has them."""
    found = session.run("uv", "pip", "freeze", external=True, silent=True, success_codes=[0, 2]) or ""
    versions = dict(re.findall(r"^(pytest|torch|pytest-xdist|pytest-timeout)==(\S+)$", str(found), re.MULTILINE))
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _note(cell: tuple[str, str, str], result: str, versions: str) -> None:
    """Replace the last two columns of a row of the page."""
    start = "| " + " | ".join(version or "newest" for version in cell) + " |"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    lines = PAGE.read_text().splitlines()
    lines = [f"{start} {result} {today} | {versions} |" if line.startswith(start) else line for line in lines]
    PAGE.write_text("\n".join(lines) + "\n")
