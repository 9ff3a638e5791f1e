"""Long texts of a page: equal ones are there once, and all together have a bound."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Bytes of all texts together, as HTML.
BUDGET = 2_400_000


@dataclass(frozen=True)
class ShownText:
    """A text at one place of the page.

    Attributes:
        id: of the element that has it, one for all places with this text.
        text: empty where another place has it, or none.
        is_left_out: whether no place has it.
    """

    id: str
    text: str = ""
    is_left_out: bool = False


@dataclass
class StoredTexts:
    """First ``admit()`` all, the most important ones first; then ask for each in the order of the page."""

    budget: int = BUDGET
    _admitted: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)
    _shown: set[str] = field(default_factory=set)

    def admit(self, texts: Iterable[str]) -> None:
        """Take texts as long as there is room."""
        for text in texts:
            name = _name(text)
            if name in self._admitted or name in self._refused:
                continue
            size = len(html.escape(text).encode(errors="replace"))
            if size <= self.budget:
                self.budget -= size
                self._admitted.add(name)
            else:
                self._refused.add(name)

    def show(self, text: str) -> ShownText:
        """The text, where this is the first place that shows it."""
        name = _name(text)
        if name not in self._admitted:
            return ShownText(name, is_left_out=True)
        if name in self._shown:
            return ShownText(name)
        self._shown.add(name)
        return ShownText(name, text)


def _name(text: str) -> str:
    return "x" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
