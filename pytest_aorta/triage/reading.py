"""Read the records of a results directory, or of a part of one, and their table."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from pytest_aorta.common.texts import counted
from pytest_aorta.probe.environment_facts import INSTALLED
from pytest_aorta.probe.software import read_package_list
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.environments import Environments
from pytest_aorta.triage.facts import TrialFacts, facts_of
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.trials.records import from_aorta, is_of_aorta
from pytest_aorta.workspace.paths import HISTORY, REPLAY, time_of_run

MATRIX_JSON = "matrix.json"

#: Names of trial files: ours, and AORTA's.
_FILE = re.compile(r"trial_(?:d\d+_m\d+_t)?(\d+)\.json")

#: Names of folders with a trial's artifacts, which may contain another run of pytest-aorta.
_ARTIFACTS = re.compile(r"(trial_\d+)(?:\.repeat_\d+)?(?:\.(?:rank|node)_\d+)?")

_TRIAL_ID = re.compile(r"_d(\d{1,9})_m(\d{1,9})_t\d+$")

#: Characters of a wrong value in a message.
_SHOWN = 100

#: The results directory is at most so many folders above a trial file's: workload or test, and cell.
_DEEPEST = 2


@dataclass(frozen=True)
class RecordedTrial:
    """The content of a trial file. ``record`` is as written: a NaN is the text ``NaN``."""

    file: str
    record: Mapping[str, Any]
    facts: TrialFacts


@dataclass(frozen=True)
class Unreadable:
    """A file with the name of a trial file that cannot be read; ``file`` is relative to the results directory."""

    file: str
    reason: str


class Results:
    """The trial files in a results directory, in the folder of a workload or a cell, or one of them alone.

    Attributes:
        folder: the results directory, if it can be found; files are relative to it.
        replays: number of skipped replays. Their choice depends on how trials ended, so they are read only if ``path``
            is a folder of replays.
    """

    def __init__(self, path: Path, rules: Sequence[tuple[str, str]] | None = None) -> None:
        if not os.path.exists(path):  # Path.exists() raises for impossible names
            raise RequestError(f"{path}: there is no such file or folder; expected a results directory")
        self.path = path
        folder = path if path.is_dir() else path.parent
        places = [folder, *folder.absolute().parents[:_DEEPEST]]
        self.folder = next((place for place in places if any(place.glob("packages-*.json"))), folder)
        self._rules = rules
        self.unreadable: list[Unreadable] = []
        self.replays = 0
        #: Folders of AORTA's cells, by workload and name.
        self._folders: dict[tuple[str, str], Path] = {}

    def __iter__(self) -> Iterator[RecordedTrial]:
        self.unreadable.clear()
        self.replays = 0
        below = Path(os.path.relpath(self.path, self.folder)).parts
        asks_for_replays = self.path.is_file() or REPLAY in (os.path.basename(os.path.abspath(self.path)), *below)
        for path in [str(self.path)] if self.path.is_file() else self._files():
            file = os.path.relpath(path, self.folder)
            try:
                record = json.loads(Path(path).read_bytes())
                if is_of_aorta(record):
                    record = self._from_aorta(record, path)
                problem = _problem(record)
                facts = facts_of(record, file, self.rules) if problem is None else None
            except OSError as error:
                facts, problem = None, error.strerror or str(error)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                facts, problem = None, f"not valid JSON: {error}"
            except RecursionError:
                facts, problem = None, "nested too deeply"
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                facts, problem = None, f"not the record of a trial: {type(error).__name__}: {error}"
            if facts is None:
                self.unreadable.append(Unreadable(file, problem or ""))
            elif record.get("replay_of") and not asks_for_replays:
                self.replays += 1
            else:
                yield RecordedTrial(file, record, facts)

    def _from_aorta(self, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Convert a record of AORTA; cells that differ only in variables or options are named after their folders."""
        converted = from_aorta(record)
        name = f"{converted['execution_env']['name']}-{'+'.join(converted['mitigations_applied'])}"
        folder = Path(path).parent.parent
        taken = self._folders.setdefault((record["workload"], name), folder)
        if taken != folder and taken.parent == folder.parent:
            name = f"{name}.{folder.name}"
        return {**converted, "cell": name}

    @cached_property
    def rules(self) -> Sequence[tuple[str, str]]:
        """The user's rules for signatures: as given, else from the run's matrix."""
        if self._rules is not None:
            return self._rules
        try:
            return recorded_rules(json.loads((self.folder / MATRIX_JSON).read_bytes()))
        except (OSError, ValueError, RecursionError):
            return ()

    def _files(self) -> Iterator[str]:
        """All trial files below a folder. Links to folders are not followed, as they may be circular."""

        def note(error: OSError) -> None:
            file = os.path.relpath(error.filename, self.folder)
            self.unreadable.append(Unreadable(file, error.strerror or str(error)))

        for folder, folders, files in os.walk(self.path, onerror=note):
            numbers = sorted((int(match[1]), name) for name in files if (match := _FILE.fullmatch(name)))
            # Folders of workloads, at the top, may have any name.
            has_artifacts = numbers or folder != str(self.path)
            passed_over = (HISTORY, *(name for name in folders if has_artifacts and _ARTIFACTS.fullmatch(name)))
            folders[:] = sorted(set(folders).difference(passed_over))
            yield from (os.path.join(folder, name) for _, name in numbers)

    def installed(self, digest: str) -> dict[str, str] | None:
        """Distributions with this digest, name to version; ``None`` if their list is not here."""
        return read_package_list(self.folder, digest)

    def nothing_found(self) -> RequestError:
        """The error for a reader that has got no trial."""
        what = f"{self.path}: there are no trials"
        if self.unreadable:
            first = self.unreadable[0]
            files = f"{len(self.unreadable)} file{'s' * (len(self.unreadable) != 1)} cannot be read"
            return RequestError(f"{what}; {files}, the first is {first.file}: {first.reason}")
        if self.replays:
            return RequestError(f"{what}, only {self.replays} replays; for these, name {self.path / 'replay'}")
        return RequestError(f"{what}; expected files as pytest --aorta-workload writes them, such as gemm/trial_0.json")


def run_again_by_outcome(folder: Path, trials: Iterable[TrialFacts]) -> Iterator[str]:
    """Of each cell in which only failed trials were run again, with ``--lf`` or by name: its rate mixes both runs."""
    cells: dict[Path, dict[str, TrialFacts]] = {}
    for facts in trials:
        cells.setdefault(Path(facts.file).parent, {})[facts.file] = facts
    for place, own in cells.items():
        for earlier in sorted(folder.glob(f"{HISTORY}/*/{glob.escape(str(place))}")):
            before = {str(place / Path(trial.file).name): trial.facts for trial in Results(earlier)}
            began = time_of_run(earlier.relative_to(folder / HISTORY).parts[0])
            has_others = any(file not in before and facts.started_at < began for file, facts in own.items())
            if has_others and before and all(facts.is_failure for facts in before.values()):
                again = f"{counted(len(before), 'failed trial')} of {' '.join(place.parts)} ran again, others did not"
                yield f"{again}: its rate is too low if they were chosen for that (--lf)"


def recorded_rules(matrix: Any) -> tuple[tuple[str, str], ...]:
    """The user's rules for signatures in the content of a ``matrix.json``; empty if they are invalid."""
    try:
        rules = tuple((str(name), str(pattern)) for name, pattern in matrix["settings"]["signatures"])
        for _, pattern in rules:
            re.compile(pattern)
    except (ValueError, KeyError, TypeError, re.error):
        return ()
    return rules


def environments_of(path: Path) -> Environments:
    """Of a trial file, a results directory, or a file that ``pytest-aorta env --json`` has written.

    Raises:
        RequestError: it is none of them.
    """
    expected = "expected a trial file, a results directory, or a file that pytest-aorta env --json has written"
    content: Any = {}
    if not path.is_dir():
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}; {expected}") from None
        except (ValueError, RecursionError):
            raise RequestError(f"{path} is not valid JSON; {expected}") from None
    if isinstance(content, dict) and isinstance(content.get("host"), dict) and "captured_at" in content:
        listed = content.get(INSTALLED) or {}
        environments = Environments(lambda digest: listed["versions"] if listed.get("digest") == digest else None)
        environments.add({"env": content})
        return environments
    results = Results(path)
    environments, found = Environments(results.installed), False
    for trial in results:
        environments.add(trial.record)
        found = True
    if not found:
        raise RequestError(f"{path} has no environment; {expected}")
    return environments


def read_triage(path: Path, settings: TriageSettings | None = None) -> tuple[Triage, Results]:
    results = Results(path)
    facts = [trial.facts for trial in results]
    if not facts:
        raise results.nothing_found()
    return triage_in_order(facts, settings), results


def triage_in_order(facts: Iterable[TrialFacts], settings: TriageSettings | None = None) -> Triage:
    """Triage trials given in any order; cells in the order of their plans, then cells of tests."""
    in_time = sorted(facts, key=lambda each: (each.started_at, each.file))
    workloads = {each.key.workload: number for number, each in reversed([*enumerate(in_time)]) if not each.key.test}

    def place_in_plan(facts: TrialFacts) -> tuple[float, ...]:
        match = _TRIAL_ID.search(facts.trial_id)
        numbers = (int(match[1]), int(match[2])) if match else (0, 0)
        return (inf,) if facts.key.test else (workloads[facts.key.workload], *numbers)

    triage = Triage(settings)
    for each in sorted(in_time, key=place_in_plan):
        triage.declare(each.key, each.environment, each.mitigations)
    for each in sorted(in_time, key=lambda each: (each.index, each.file)):
        triage.add(each)
    return triage


def _problem(record: Any) -> str | None:
    """Why this version cannot read a record; ``None`` if it can."""
    from pydantic import ValidationError

    from pytest_aorta.trials.result import TrialResult

    try:
        TrialResult.model_validate(record)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        return f"not the record of a trial: {place}: {wrong['msg']}, not {repr(wrong['input'])[:_SHOWN]}"
    return None
