"""How far the actions of a recipe are, from the index alone.

The trials of a matrix are one text per cell, a letter for each of them: 100,000 are counted in no time. Only who asks
for single trials gets one name for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.cell_requests import Requests
from pytest_aorta.workflow.decided import asked_of
from pytest_aorta.workflow.states import Open, Progress, State, open_for
from pytest_aorta.workspace.index.cache import NO_RECORD, CellRecords, Index
from pytest_aorta.workspace.index.decided import Decided, DecidedCells
from pytest_aorta.workspace.index.submitted import Submitted

#: Letters of trials, for what their recorded letters (``workspace.index.cache``) mean under the recipe.
COMPLETED, FAILED, WITHOUT_RESULT, STALE, OPEN = b"cfis-"

#: Of a trial that will not be run, because its cell is decided.
NOT_NEEDED = ord("n")

_RECORDED = b"ofti-"
_EXPECTED = {
    "pass": bytes.maketrans(_RECORDED, bytes([COMPLETED, FAILED, FAILED, WITHOUT_RESULT, OPEN])),
    "fail": bytes.maketrans(_RECORDED, bytes([FAILED, COMPLETED, COMPLETED, WITHOUT_RESULT, OPEN])),
}
#: Of one without a result that a scheduler has.
SUBMITTED = ord("q")

_OF_OTHER_REQUEST = bytes.maketrans(_RECORDED, bytes([STALE, STALE, STALE, STALE, OPEN]))

#: Letters of trials that have ended with something to say of the workload, or need not begin.
_TERMINAL = bytes([COMPLETED, FAILED, NOT_NEEDED])

#: Whether source files, path to digest, are others now.
HaveChanged = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True)
class Trials:
    """How far a matrix is: a letter for each trial of each cell."""

    cells: Mapping[str, bytes]

    def progress(self) -> Progress:
        """The same with a name for each trial that is needed, ``CELL/INDEX``."""
        named = {letter: self.named(letter) for letter in (COMPLETED, FAILED, WITHOUT_RESULT, STALE, SUBMITTED)}
        return Progress(
            units=[
                f"{cell}/{index}"
                for cell, letters in self.cells.items()
                for index, letter in enumerate(letters)
                if letter != NOT_NEEDED
            ],
            completed=frozenset(named[COMPLETED]),
            failed=frozenset([*named[FAILED], *named[WITHOUT_RESULT]]),
            without_result=frozenset(named[WITHOUT_RESULT]),
            stale=frozenset(named[STALE]),
            submitted=frozenset(named[SUBMITTED]),
        )

    def named(self, letter: int) -> list[str]:
        """The names of the trials that have this letter."""
        return [f"{cell}/{index}" for cell, letters in self.cells.items() for index in _places(letters, letter)]

    def count(self, letter: int) -> int:
        """How many trials have this letter."""
        return sum(letters.count(letter) for letters in self.cells.values())

    def seen_by(self, follower: Action) -> Progress:
        """Progress that leaves open for a follower what ``progress`` leaves open, with no more names than it needs."""
        if follower.is_matrix:
            return self._by_cell(bytes([COMPLETED, NOT_NEEDED]))
        return self._by_cell(_TERMINAL) if follower.table.each in ("cell", "matrix") else self.progress()

    def _by_cell(self, done: bytes) -> Progress:
        """With cells as units: those are completed of which all trials have one of these letters."""
        return Progress([*self.cells], {cell for cell, letters in self.cells.items() if not letters.strip(done)})


def _places(letters: bytes, letter: int) -> Iterator[int]:
    found = letters.find(letter)
    while found >= 0:
        yield found
        found = letters.find(letter, found + 1)


def progress_of(
    recipe: Recipe,
    index: Index,
    requests: Requests,
    directories: Sequence[str],
    have_changed: HaveChanged,
    submitted: Submitted | None = None,
    decided: Decided | None = None,
) -> dict[str, Trials | Progress]:
    """How far each action is, by its name.

    Args:
        recipe: with the actions.
        index: what has been completed. What commands have made is not looked for again.
        requests: what is asked of each cell of the actions with a workload.
        directories: of the workspace.
        have_changed: whether source files have changed.
        submitted: what a scheduler has.
        decided: cells that need no more trials.
    """
    found: dict[str, Trials | Progress] = {}
    for name, (action, *_) in recipe.by_name.items():
        if action.is_matrix:
            recorded = _trials(action, index, requests, have_changed, (decided or {}).get(name))
            found[name] = _with_submitted(recorded, (submitted or {}).get(name, {}))
            continue
        outcomes = index.commands.get(name, {})
        has_products = bool(action.table.products)
        found[name] = Progress(
            units=units_of(action, recipe, requests, directories),
            completed={unit for unit, outcome in outcomes.items() if outcome == "completed" and has_products},
            failed={unit for unit, outcome in outcomes.items() if outcome == "failed"},
            submitted=(submitted or {}).get(name, {}).keys(),
        )
    for name, progress in found.items():
        if isinstance(progress, Progress) and recipe.by_name[name][0].table.each == "trial":
            matrix = matrix_before(recipe.by_name[name][0], recipe)
            trials = found[matrix.name] if matrix is not None else None
            if isinstance(trials, Trials) and (unneeded := {*trials.named(NOT_NEEDED)}):
                found[name] = replace(progress, units=[unit for unit in progress.units if unit not in unneeded])
    return found


def units_of(action: Action, recipe: Recipe, requests: Requests, directories: Sequence[str]) -> Sequence[str]:
    """The units of an action, whichever of them it includes."""
    matrix = action if action.is_matrix else matrix_before(action, recipe)
    if matrix is None or not (action.is_matrix or action.table.each != "directory"):
        return directories
    cells = requests[matrix.name]
    if action.table.each == "matrix" and not action.is_matrix:
        return [""]
    if action.table.each == "cell" and not action.is_matrix:
        return [*cells]
    return [f"{cell}/{index}" for cell in cells for index in range(matrix.table.trials)]


def matrix_before(action: Action, recipe: Recipe) -> Action | None:
    """The action with a workload whose trials, or cells, an action is run on: the nearest before it."""
    names = [*action.table.previous_actions]
    for name in names:
        before = recipe.by_name[name][0]
        if before.is_matrix:
            return before
        names += [each for each in before.table.previous_actions if each not in names]
    return None


def _trials(
    action: Action, index: Index, requests: Requests, have_changed: HaveChanged, decided: DecidedCells | None
) -> Trials:
    records = index.cells.get(action.name, {})
    trials = Trials(
        {
            cell: _letters(records.get(cell, ()), request.digest, action, have_changed)
            for cell, request in requests[action.name].items()
        }
    )
    if decided is None or trials.count(STALE):  # then the trials that have decided it are run again
        return trials
    if decided.asked != asked_of(action, {cell: each.digest for cell, each in requests[action.name].items()}):
        return trials
    unneeded = bytes.maketrans(bytes([OPEN]), bytes([NOT_NEEDED]))
    return Trials(
        {
            cell: letters.translate(unneeded) if cell in decided.cells else letters
            for cell, letters in trials.cells.items()
        }
    )


def _with_submitted(trials: Trials, submitted: Mapping[str, str]) -> Trials:
    """Trials of which a scheduler has some; a result that is there already stays."""
    if not submitted:
        return trials
    cells = {cell: bytearray(letters) for cell, letters in trials.cells.items()}
    for unit in submitted:
        cell, _, index = unit.rpartition("/")
        letters = cells.get(cell)
        if letters is not None and index.isdecimal() and int(index) < len(letters):
            place = int(index)
            if letters[place] not in _TERMINAL:
                letters[place] = SUBMITTED
    return Trials({cell: bytes(letters) for cell, letters in cells.items()})


def _letters(records: Sequence[CellRecords], request: str, action: Action, have_changed: HaveChanged) -> bytes:
    """What is known of the trials of a cell; no two of its records are of one trial."""
    count = action.table.trials
    letters = bytearray(NO_RECORD.encode() * count)
    for each in records:
        is_current = each.request == request and not have_changed(each.sources)
        meaning = _EXPECTED[action.table.expect] if is_current else _OF_OTHER_REQUEST
        known = bytes(each.letters[:count].translate(meaning))
        if len(records) == 1:
            letters[: len(known)] = known
            break
        for index, letter in enumerate(known):
            if letter != OPEN:
                letters[index] = letter
    return bytes(letters)


def previous_of(action: Action, recipe: Recipe, found: Mapping[str, Trials | Progress]) -> list[Open]:
    """What the previous actions of an action have left open for it."""
    opened = []
    for name in action.table.previous_actions:
        progress = found[name]
        seen = progress.seen_by(action) if isinstance(progress, Trials) else progress
        opened.append(open_for(action, recipe.by_name[name][0], seen))
    return opened


def state_counts(trials: Trials, previous: Sequence[Open]) -> dict[State, int]:
    """How many trials of a matrix are in each state; ``previous``: of ``previous_of``."""
    rest = State.WAITING if any(each.units for each in previous) else State.ELIGIBLE
    return {
        **dict.fromkeys(State, 0),
        State.COMPLETED: trials.count(COMPLETED),
        State.FAILED: trials.count(FAILED) + trials.count(WITHOUT_RESULT),
        State.STALE: trials.count(STALE),
        State.SUBMITTED: trials.count(SUBMITTED),
        rest: trials.count(OPEN),
    }
