"""What differs between the environments of two sets of trials, in plain words: ``torch 2.12.0 -> 2.13.0``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.environment_facts import PACKAGES, Fact, Value, clause, is_hidden

if TYPE_CHECKING:
    from pytest_aorta.triage.compare.environments import Counts, Environments, Installed


@dataclass(frozen=True)
class Difference:
    """A fact that has other values on the other side.

    Attributes:
        fact: which.
        before, after: values and how many trials have them, the most frequent first; ``None`` is for those without.
    """

    fact: Fact
    before: tuple[tuple[Value | None, int], ...]
    after: tuple[tuple[Value | None, int], ...]

    def __str__(self) -> str:
        """One short clause."""
        return clause(self.fact, self.before, self.after)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same change, in however many trials."""
        return self.fact, frozenset(value for value, _ in self.before), frozenset(value for value, _ in self.after)

    def to_plain(self) -> dict[str, Any]:
        """``what``, ``text``, and of both sides the values with their numbers of trials, as JSON data."""
        return {
            "what": self.fact.name,
            "text": str(self),
            "a": [{"value": _plain(value), "trials": trials} for value, trials in self.before],
            "b": [{"value": _plain(value), "trials": trials} for value, trials in self.after],
        }


def differences(
    a: Environments,
    b: Environments,
    installed: tuple[Installed, Installed] | None = None,
    ignored: Iterable[str] = (),
) -> list[Difference]:
    """What differs between two sets of trials, the most important first.

    A fact differs when the trials of one side have a value that no trial of the other side has. What is not known of
    either side is left out, and so is what another difference explains: with torch, its commit changes too.

    Args:
        a, b: the trials.
        installed: gives lists of all installed distributions, for each side.
        ignored: names of facts, such as variables, that are meant to differ.
    """
    lists = installed if installed is not None and _all_listed(a, b, installed) else (lambda _: None,) * 2
    before, after = a.facts(lists[0]), b.facts(lists[1])
    unwanted = set(ignored)
    found = []
    for fact in sorted(before.keys() | after.keys()):
        one, two = before.get(fact) or a.without(fact), after.get(fact) or b.without(fact)
        if one and two and one.keys() != two.keys() and fact.name not in unwanted:
            found.append(Difference(fact, _by_frequency(one), _by_frequency(two)))
    if not any(difference.fact.section == "packages" for difference in found):
        found += _unlisted_packages(a, b)
    names = {difference.fact.name for difference in found}
    return [difference for difference in found if difference.fact.implied_by not in names]


def _all_listed(a: Environments, b: Environments, installed: tuple[Installed, Installed]) -> bool:
    return all(
        lookup(digest) is not None
        for side, lookup in zip((a, b), installed, strict=True)
        for digest in side.package_digests()
    )


def _unlisted_packages(a: Environments, b: Environments) -> list[Difference]:
    one, two = a.package_digests(), b.package_digests()
    if not one or not two or one == two:
        return []
    sides = [tuple((digest, 0) for digest in sorted(digests)) for digests in (one, two)]
    return [Difference(PACKAGES, sides[0][:1], sides[1][:1])]


def _by_frequency(counts: Counts) -> tuple[tuple[Value | None, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def _plain(value: Value | None) -> Any:
    if is_hidden(value):
        return None
    return list(value) if isinstance(value, tuple) else value
