"""Seeds of the random generators that a fork copies.

``random``, NumPy's legacy global generator and torch's default generators take a seed from the operating system when a
fresh interpreter imports them; a fork inherits their state instead. So every trial, and every rank of one, is given a
seed of its own for each of them: at the fork where the module is loaded already, else right after its import, which is
where a fresh interpreter seeds it. A generator that the workload's import has seeded on purpose keeps its state, as it
has the same one in every fresh interpreter, too.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_aorta.trials.installed import WatchedImports
from pytest_aorta.trials.records import Seeds

#: Bits of a seed: every JSON reader takes so many for an integer.
SEED_BITS = 53

#: Blocks of 624 words that an import may have drawn from a Mersenne Twister for its seed to be recognised.
_BLOCKS = 1000


def random_seed() -> int:
    """A seed from the operating system."""
    return secrets.randbits(SEED_BITS)


def derived_seed(seed: int | str, *names: str | int) -> int:
    """A seed that depends on ``seed`` and all ``names``; by SHA-256, so that related seeds share nothing."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - SEED_BITS)


def rank_seed(seed: int, rank: int, attempt: int = 0) -> int:
    """The seed of one rank of a trial; a rank that is started again gets another seed."""
    return derived_seed(seed, "rank", rank, attempt)


def command_seed(seed: int) -> int:
    """The seed of a trial for the program of a command: below 2**31, as NumPy takes it."""
    return derived_seed(seed, "command") >> (SEED_BITS - 31)


def hash_seed(run: int | str, number: int) -> int:
    """``PYTHONHASHSEED`` of the start or command with this number, in every cell of a run."""
    return 1 + derived_seed(run, "hash", number) % (2**32 - 1)


def rank_hash_seed(seed: int, rank: int, attempt: int = 0) -> int:
    """``PYTHONHASHSEED`` of a rank, derived from its trial's."""
    return 1 + derived_seed(seed, "hash of rank", rank, attempt) % (2**32 - 1)


#: Modules with a generator, and their functions that give and set its state.
GENERATORS = {
    "random": ("getstate", "setstate"),
    "numpy.random": ("get_state", "set_state"),
    "torch": ("get_rng_state", "set_rng_state"),
}


def generator_state(name: str) -> list[Any]:
    """The state of the generator of a module that is loaded, as plain values that can be compared."""
    state = getattr(sys.modules[name], GENERATORS[name][0])()
    plain = []
    for part in state if isinstance(state, tuple) else (state,):
        plain.append(part.tolist() if hasattr(part, "tolist") else part)
    return plain


class ProcessSeeds(WatchedImports):
    """The seeds of this process's generators, from now on; one instance per process and per fork.

    Attributes:
        given: the seed of each generator that has been seeded, by module.
        kept: states of the generators that the workload has seeded itself, by module.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.given: dict[str, int] = {}
        self.kept: dict[str, Any] = {}
        self._devices_wait = False
        #: These are seeded right after their import.
        self._waited_for = GENERATORS.keys() - sys.modules.keys()
        for name in GENERATORS:
            if name in sys.modules:
                self._seed(name, derived_seed(seed, name))
        super().__init__()

    def _seed(self, name: str, seed: int) -> None:
        self.given[name] = seed
        module: Any = sys.modules[name]
        if name == "random":
            module.seed(seed)
        elif name == "numpy.random":
            module.seed([seed & 0xFFFFFFFF, seed >> 32])
        else:
            module.default_generator.manual_seed(seed)
            if module.version.cuda or module.version.hip:
                self._seed_devices(module)

    def _seed_devices(self, torch: Any) -> None:
        """Seed the devices when they are initialised, with the last seed given before.

        ``torch.manual_seed`` does so as well, but formats a stack each time, which takes a fork two milliseconds.
        """
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(self.given["torch"])
        elif not self._devices_wait:
            self._devices_wait = True
            torch.cuda._lazy_call(
                lambda: [each.manual_seed(self.given["torch"]) for each in torch.cuda.default_generators]
            )

    def restart(self, seed: int) -> None:
        """In a fork: other seeds, except for the generators that were seeded otherwise before it (``note_kept``)."""
        self.seed = seed
        for name in self.given:
            if name not in self.kept:
                self._seed(name, derived_seed(seed, name))
            else:  # a fork gives ``random`` a new seed
                getattr(sys.modules[name], GENERATORS[name][1])(self.kept[name])

    def note_kept(self) -> None:
        """Remember which generators have been seeded otherwise so far: once, before many forks.

        The others have a state that their seed gives, whatever has been drawn since.
        """
        for name, seed in self.given.items():
            module: Any = sys.modules[name]
            state = getattr(module, GENERATORS[name][0])()
            if name == "torch":
                if module.initial_seed() != seed:
                    self.kept[name] = state
                continue
            if name == "random":
                copy, words = random.Random(seed), state[1][:-1]
            else:  # NumPy has the same generator, and ``random`` advances whole blocks quickly
                copy, words = random.Random(), tuple(map(int, state[1]))
                given = module.RandomState([seed & 0xFFFFFFFF, seed >> 32]).get_state()[1]
                copy.setstate((3, (*map(int, given), 624), None))
            for _ in range(_BLOCKS):
                if copy.getstate()[1][:-1] == words:
                    break
                copy.getrandbits(32 * 624)
            else:
                self.kept[name] = state

    def is_fresh(self, name: str) -> bool:
        """Whether the generator of a module has the state that it was given, or has been given none."""
        if name not in self.given:
            return True
        get_state, set_state = (getattr(sys.modules[name], function) for function in GENERATORS[name])
        state, exact = generator_state(name), get_state()
        self._seed(name, self.given[name])
        fresh = generator_state(name) == state
        set_state(exact)
        return fresh

    def record(self) -> Seeds:
        """The seeds for the record, also of generators that are not loaded yet."""
        generators = {}
        for name in GENERATORS:
            if name not in self.kept:
                generators[name] = derived_seed(self.seed, name)
        return Seeds(self.seed, generators, sorted(self.kept))

    def wants(self, name: str) -> bool:
        """The first import of a generator that is not loaded yet."""
        is_new = name in self._waited_for
        self._waited_for.discard(name)
        return is_new

    def execute(self, name: str, execute: Callable[[ModuleType], object], module: ModuleType) -> None:
        """Seed a generator right after its import."""
        execute(module)
        self._seed(name, derived_seed(self.seed, name))
