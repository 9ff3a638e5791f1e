"""A fact that is another one, as one short clause: ``torch 2.12.0 -> 2.13.0``."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_aorta.probe.environment_facts import GPUS, Fact, Value
from pytest_aorta.probe.redaction import DIGEST

#: Values of a fact, and how many trials have each; ``None`` is for those that do not have it.
Values = Sequence[tuple[Value | None, int]]

#: The section of facts that are files: their values are digests.
FILES = "files"

#: Values of one side, and words that came or went, that are shown.
_MOST = 3

#: Longest value that is shown.
_LONGEST = 60


def clause(fact: Fact, before: Values, after: Values) -> str:
    """What has become of a fact; with numbers of trials where one side has several values."""
    name = "" if fact.name == GPUS else fact.name
    one, two = (values[0][0] if len(values) == 1 else None for values in (before, after))
    if isinstance(one, tuple) and isinstance(two, tuple):
        return f"{name}: {_words(one, two)}"
    if fact.section == FILES and (_is_absent(before) or _is_absent(after)):
        return f"{name} is {'new' if _is_absent(before) else 'gone'}"
    if is_hidden(one) and is_hidden(two):
        return f"{name} changed{', value not recorded' if fact.section == 'env_vars' else ''}"
    return f"{name} {_side(fact, before)} -> {_side(fact, after)}".strip()


def is_hidden(value: Value | None) -> bool:
    """Whether it is the digest of a value."""
    return isinstance(value, str) and value.startswith(DIGEST)


def _side(fact: Fact, values: Values) -> str:
    if len(values) == 1:
        return _shown(fact, values[0][0])
    shown = [f"{_shown(fact, value)} ({trials} trial{'s' * (trials != 1)})" for value, trials in values[:_MOST]]
    more = len(values) - _MOST
    return ", ".join(shown) + (f" and {more} other value{'s' * (more != 1)}" if more > 0 else "")


def _shown(fact: Fact, value: Value | None) -> str:
    if value is None:
        return fact.nothing
    if is_hidden(value):
        return "(value not recorded)" if fact.section == "env_vars" else f"({str(value)[len(DIGEST) :][:8]})"
    return _cut(", ".join(value) if isinstance(value, tuple) else value) or "(empty)"


def _words(one: tuple[str, ...], two: tuple[str, ...]) -> str:
    """Which words are there on one side only."""
    gone, new = ([word for word in words if word not in others] for words, others in ((one, two), (two, one)))
    parts = [f"{what} {_listed(words)}" for what, words in (("without", gone), ("with", new)) if words]
    return ", ".join(parts) or "in another order"


def _listed(words: list[str]) -> str:
    more = len(words) - _MOST
    return ", ".join(map(_cut, words[:_MOST])) + (f" and {more} more" if more > 0 else "")


def _is_absent(values: Values) -> bool:
    return [value for value, _ in values] == [None]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
