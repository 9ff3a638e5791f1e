"""The names of one kind of thing, and what each of them loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from pytest_aorta.registry.errors import RegistryCollisionError, RegistryError, one_line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


@dataclass(frozen=True)
class Offer(Generic[T]):
    """One name from one source.

    Attributes:
        name: as it is typed.
        source: the distribution or the file, as messages name it.
        source_package: the same as trial files have it (``Mitigation.source_package``).
        load: returns what the name stands for; may import third-party code, or raise ``RegistryError``.
    """

    name: str
    source: str
    source_package: str
    load: Callable[[], T]


class Catalog(Generic[T]):
    """Names, each with its offer.

    Args:
        kind: what the names name, for messages (``mitigation``).
        offers: from every source.
        unknown: the error for a name that is not there.
        separators: characters with a meaning of their own wherever such names are written in a row.

    Attributes:
        refused: errors of names that cannot be typed or read, or have two offers; what such a name names is not to be
            had.
    """

    def __init__(
        self,
        kind: str,
        offers: Iterable[Offer[T]],
        *,
        unknown: type[RegistryError],
        separators: str = "",
    ) -> None:
        self._kind = kind
        self._unknown = unknown
        self.refused: list[RegistryError] = []
        self._offers: dict[str, Offer[T]] = {}
        for offer in offers:
            error = self._unusable(offer, separators)
            other = self._offers.setdefault(offer.name, offer)
            if other is not offer:
                error = RegistryCollisionError(
                    f"the {kind} name {offer.name!r} is offered twice, by {other.source} and by {offer.source}; "
                    "neither wins: rename or remove one of them"
                )
            if error is not None:
                self.refused.append(error)
                self._offers[offer.name] = replace(other, load=partial(_raise, error))

    def source_package(self, name: str) -> str:
        """Where a known name comes from, also when it cannot be loaded; of a name with two offers, the first."""
        return self._offers[name].source_package

    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self._offers)

    def get(self, name: str) -> T:
        """Load what ``name`` names, and nothing else."""
        offer = self._offers.get(name)
        if offer is None:
            raise self._unknown(self._unknown_message(name))
        return self._load(offer)

    def _load(self, offer: Offer[T]) -> T:
        """What an offer names; a plugin's object may raise anything when it is looked at."""
        try:
            return offer.load()
        except RegistryError:
            raise
        except Exception as error:
            raise RegistryError(
                f"the {self._kind} {offer.name!r} from {offer.source} cannot be read: {one_line_of(error)}"
            ) from error

    def problems(self) -> list[str]:
        """One line for every offer that cannot be loaded. Loads all of them."""
        lines = []
        for name in self.names():
            try:
                self._load(self._offers[name])
            except RegistryError as error:
                lines.append(str(error))
        return lines

    def _unusable(self, offer: Offer[T], separators: str) -> RegistryError | None:
        name = offer.name
        separator = next((character for character in name if character in separators), None)
        if not name:
            reason = "it is empty"
        elif not name.isprintable():
            reason = "it holds a control character, or one that cannot be seen"
        elif name != name.strip():
            reason = "it begins or ends with a space"
        elif separator is not None:
            reason = f"it holds {separator!r}, which separates names where several are given"
        else:
            return None
        return RegistryError(f"the {self._kind} name {name!r} from {offer.source} cannot be used: {reason}")

    def _unknown_message(self, name: str) -> str:
        message = f"unknown {self._kind} {name!r}; available: {', '.join(self.names()) or '(none is registered)'}"
        if suggestion := self._closest(name):
            message += f"; did you mean {suggestion!r}?"
        # The name may belong to a plugin that is broken.
        if problems := self.problems():
            message += "\nthese plugins could not be loaded:\n  " + "\n  ".join(problems)
        return message

    def _closest(self, name: str) -> str | None:
        import difflib  # only here: a typo is rare, and a child process never makes one

        # Names are case-sensitive; a suggestion helps after a wrong case.
        folded = {candidate.casefold(): candidate for candidate in self.names()}
        matches = difflib.get_close_matches(str(name).casefold(), folded, n=1)
        return folded[matches[0]] if matches else None


def _raise(error: RegistryError) -> NoReturn:
    raise error
