"""Seeds of the random generators that a fork copies.

``random``, NumPy's legacy global generator and torch's default generators take a seed from the operating system when a
fresh interpreter imports them; a fork inherits their state instead. So every trial, and every rank of one, is given a
seed of its own for each of them: at the fork where the module is loaded already, else right after its import, which is
where a fresh interpreter seeds it. A generator that the workload's import has seeded on purpose keeps its state, as it
has the same one in every fresh interpreter, too.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import random
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_aorta.trials.records import Seeds

#: Of a seed; what every JSON reader takes for an integer.
SEED_BITS = 53

#: Blocks of 624 words that an import may have drawn from a Mersenne Twister for its seed to be recognised.
_BLOCKS = 1000


def random_seed() -> int:
    """A seed from the operating system."""
    return secrets.randbits(SEED_BITS)


def derived_seed(seed: int, *names: str | int) -> int:
    """A seed that depends on ``seed`` and all ``names``; by SHA-256, so that related seeds share nothing."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - SEED_BITS)


def rank_seed(seed: int, rank: int, attempt: int = 0) -> int:
    """The seed of one rank of a trial: a rank that is started again gets another one."""
    return derived_seed(seed, "rank", rank, attempt)


def command_seed(seed: int) -> int:
    """The seed of a trial for the program of a command: below 2**31, as NumPy takes it."""
    return derived_seed(seed, "command") >> (SEED_BITS - 31)


@dataclass(frozen=True)
class Generator:
    """A generator of a module: how to seed it, and whether its state comes from a seed.

    ``descends(module, seed)`` is true when the state is what ``seed`` gives, whatever has been drawn since.
    ``get_state`` and ``set_state`` are names of functions of the module.
    """

    module: str
    seed: Callable[[Any, int], None]
    descends: Callable[[Any, int], bool]
    get_state: str
    set_state: str


def _seed_random(module: Any, seed: int) -> None:
    module.seed(seed)


def _random_descends(module: Any, seed: int) -> bool:
    current = module.getstate()[1]
    copy = random.Random(seed)
    return _reaches(copy, current[:-1])


def _seed_numpy(module: Any, seed: int) -> None:
    module.seed(_words(seed))


def _numpy_descends(module: Any, seed: int) -> bool:
    copy = module.RandomState(_words(seed))
    # The two libraries share the generator, and ``random`` advances whole blocks quickly.
    twin = random.Random()
    twin.setstate((3, (*map(int, copy.get_state()[1]), 624), None))
    return _reaches(twin, tuple(map(int, module.get_state()[1])))


def _words(seed: int) -> list[int]:
    return [seed & 0xFFFFFFFF, seed >> 32]


def _reaches(generator: random.Random, words: tuple[int, ...]) -> bool:
    for _ in range(_BLOCKS):
        if generator.getstate()[1][:-1] == words:
            return True
        generator.getrandbits(32 * 624)
    return False


def _seed_torch(module: Any, seed: int) -> None:
    if module.version.cuda or module.version.hip:
        module.manual_seed(seed)  # devices, too: when they are initialised, and not before
    else:
        module.default_generator.manual_seed(seed)


def _torch_descends(module: Any, seed: int) -> bool:
    return bool(module.initial_seed() == seed)


GENERATORS = {
    it.module: it
    for it in (
        Generator("random", _seed_random, _random_descends, "getstate", "setstate"),
        Generator("numpy.random", _seed_numpy, _numpy_descends, "get_state", "set_state"),
        Generator("torch", _seed_torch, _torch_descends, "get_rng_state", "set_rng_state"),
    )
}


def generator_state(name: str) -> list[Any]:
    """The state of the generator of a module that is loaded, as plain values that can be compared."""
    state = getattr(sys.modules[name], GENERATORS[name].get_state)()
    parts = state if isinstance(state, tuple) else (state,)
    return [part.tolist() if hasattr(part, "tolist") else part for part in parts]


class ProcessSeeds:
    """The seeds of this process's generators; one instance per process and per fork.

    Attributes:
        given: the seed of each generator that has been seeded, by module.
        kept: states of the generators that the workload has seeded itself, by module.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.given: dict[str, int] = {}
        self.kept: dict[str, Any] = {}
        self._finder = _AfterImport(set(GENERATORS) - set(sys.modules), self._give)

    def seed_loaded(self) -> None:
        """Seed the generators of modules that are imported already."""
        for name in GENERATORS:
            if name in sys.modules:
                self._give(name, sys.modules[name])

    def start(self) -> None:
        """Seed what is imported already, and the rest right after its import."""
        self.seed_loaded()
        sys.meta_path.insert(0, self._finder)

    def restart(self, seed: int) -> None:
        """In a fork: other seeds, except for the generators that were seeded otherwise before it (``note_kept``)."""
        self.seed = seed
        for name in self.given.keys() - self.kept.keys():
            self._give(name, sys.modules[name])
        for name, state in self.kept.items():  # a fork gives ``random`` a new seed
            getattr(sys.modules[name], GENERATORS[name].set_state)(state)

    def note_kept(self) -> None:
        """Remember which generators have been seeded otherwise so far: once, before many forks."""
        for name, seed in self.given.items():
            generator, module = GENERATORS[name], sys.modules[name]
            if not generator.descends(module, seed):
                self.kept[name] = getattr(module, generator.get_state)()

    def is_fresh(self, name: str) -> bool:
        """Whether the generator of a module has the state that it was given, or has been given none."""
        if name not in self.given:
            return True
        generator, module, state = GENERATORS[name], sys.modules[name], generator_state(name)
        exact = getattr(module, generator.get_state)()
        generator.seed(module, self.given[name])
        fresh = generator_state(name) == state
        getattr(module, generator.set_state)(exact)
        return fresh

    def record(self) -> Seeds:
        """For the record; seeds of generators that are not loaded yet are those that they will get."""
        generators = {name: derived_seed(self.seed, name) for name in GENERATORS if name not in self.kept}
        return Seeds(self.seed, generators, sorted(self.kept))

    def _give(self, name: str, module: ModuleType) -> None:
        seed = derived_seed(self.seed, name)
        GENERATORS[name].seed(module, seed)
        self.given[name] = seed


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, names: set[str], then: Callable[[str, ModuleType], None]) -> None:
        self._names = names
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the other finders, with a loader that reports the end of the import."""
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._report_end(fullname, spec.loader)
                return spec
        return None

    def _report_end(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._then(name, module)

        loader.exec_module = exec_module
