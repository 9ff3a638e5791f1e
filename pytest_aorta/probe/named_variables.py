"""Whether anything that a process has loaded or imported names a variable: what nothing names, nothing has read."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.elf_sections import NotAnObject
from pytest_aorta.probe.imported_modules import file_of, imported_since
from pytest_aorta.probe.libraries import file_identity, mapped_files
from pytest_aorta.probe.name_search import (
    Deadline,
    OutOfTime,
    names_in_bytecode,
    names_in_object,
    names_in_source,
)
from pytest_aorta.probe.plain import printable
from pytest_aorta.probe.search_cache import Entry, SearchCache, cache_key, open_cache

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.imported_modules import ModuleCount
    from pytest_aorta.probe.libraries import MappedBefore

#: Seconds that a search may take, once per set of files and names.
PATIENCE = 3.0

#: Of each variable, the files or modules that are recorded by name.
_MOST_LABELS = 4

#: Seconds from which the answer about a single shared object is kept; the others are searched as fast as it is read.
_WORTH_KEEPING = 0.005

_OWN = f"{Path(__file__).parents[1]}{os.sep}"

#: The dynamic loader recognises these by their end alone, so a search would find some of them only.
_OF_THE_LOADER = re.compile("LD_")

Identity = tuple[int, ...]

Answer = Entry
"""By name of a variable, labels of what names it; under the empty name, of what could not be searched."""

_UNSEARCHED = ""


@dataclass(frozen=True)
class ImportedBefore:
    """The sources that were imported before a fork.

    Attributes:
        key: stands for the identities of all of them.
        modules: the count of modules at that time.
    """

    key: str
    modules: ModuleCount


def imported_before_forks(modules: ModuleCount) -> ImportedBefore:
    """What is imported now, for the forks of this process."""
    return ImportedBefore(_key_of(_sources(list(sys.modules))), modules)


def named_variables(
    names: Collection[str],
    mapped: MappedBefore | None = None,
    imported: ImportedBefore | None = None,
    seconds: float = PATIENCE,
) -> Facts:
    """Which shared objects and imported sources of this process hold each of these names.

    ``by``: for each name the ``count`` of these files, and ``first``, some of them: libraries, then modules.
    ``unsearched``: files that could not be read, if there are any. ``note``: why nothing is known, instead of these.

    Searched are the executable, all shared objects that are mapped now, as ``names_in_object`` does, and the sources of
    the imported modules, except those of this package. What was found is kept in the user's cache, by the identity of
    the files, so that a trial of a cell pays for what it has loaded and imported itself.

    Args:
        names: of variables.
        mapped: the objects that were mapped before a fork, if these are still all.
        imported: the sources that were imported before a fork.
        seconds: that it may take; what was found until then is kept for the next time.
    """
    cache = open_cache()
    if cache is None:
        return {"note": "not searched: there is no folder to keep the answers in; XDG_CACHE_HOME may name one"}
    search = _Search(sorted(set(names)), cache, Deadline(seconds))
    try:
        answers = [search.objects(mapped), *search.sources(imported)]
    except OutOfTime:
        return {"note": f"not searched: it would have taken longer than {seconds:.1f} s"}
    found: Facts = {"by": {name: _shown(name, answers) for name in search.names}}
    unsearched = sorted({label for answer in answers for label in answer.get(_UNSEARCHED, [])})
    return {**found, "unsearched": unsearched[:_MOST_LABELS]} if unsearched else found


def _shown(name: str, answers: Iterable[Answer]) -> Facts:
    labels = [label for answer in answers for label in answer.get(name, [])]
    if not labels and _OF_THE_LOADER.match(name):
        labels = ["the dynamic loader"]
    return {"count": len(labels), "first": labels[:_MOST_LABELS]}


class _Search:
    def __init__(self, names: list[str], cache: SearchCache, deadline: Deadline) -> None:
        self.names = names
        self._cache = cache
        self._deadline = deadline

    def objects(self, mapped: MappedBefore | None) -> Answer:
        files = mapped_files() if mapped is None else mapped.files
        key = cache_key("objects", list(files.items()), self.names)
        kept = self._cache.read(key)
        return self._keep(key, self._search_objects(files)) if kept is None else kept

    def sources(self, imported: ImportedBefore | None) -> list[Answer]:
        later = None if imported is None else imported_since(imported.modules)
        if imported is None or later is None:
            return [self._answer_sources(_sources(list(sys.modules)))]
        key = cache_key("sources", imported.key, self.names)
        first = self._cache.read(key)
        if first is None:
            earlier = list(sys.modules)[: imported.modules.size]
            first = self._keep(key, self._search_sources(_sources(earlier)))
        return [first, self._answer_sources(_sources(later))] if later else [first]

    def _answer_sources(self, files: Mapping[str, tuple[str, Identity]]) -> Answer:
        key = cache_key("sources", _key_of(files), self.names)
        kept = self._cache.read(key)
        return self._keep(key, self._search_sources(files)) if kept is None else kept

    def _keep(self, key: str, answer: Answer) -> Answer:
        self._cache.write(key, answer)
        return answer

    def _search_objects(self, files: Mapping[str, Identity]) -> Answer:
        answer: Answer = {}
        for path, identity in files.items():
            label = printable(path.rpartition("/")[2])
            try:
                found = self._search_object(path, identity)
            except (OSError, NotAnObject):
                answer.setdefault(_UNSEARCHED, []).append(label)
                continue
            for name in sorted(found):
                answer.setdefault(name, []).append(label)
        return answer

    def _search_object(self, path: str, identity: Identity) -> set[str]:
        key = cache_key("object", path, identity)
        kept = self._cache.read(key) or {}
        searched, found = set(kept.get("searched", [])), set(kept.get("found", []))
        left = [name for name in self.names if name not in searched]
        start = time.monotonic()
        if left:
            found |= names_in_object(path, left, self._deadline)
            if file_identity(path) != identity:
                raise OSError(f"{path} is another file than the one that was loaded")
        if time.monotonic() - start > _WORTH_KEEPING:
            self._cache.write(key, {"searched": sorted(searched | set(left)), "found": sorted(found)})
        return found.intersection(self.names)

    def _search_sources(self, files: Mapping[str, tuple[str, Identity]]) -> Answer:
        answer: Answer = {}
        for path, (module, _) in files.items():
            self._deadline.check()
            try:
                content = Path(path).read_bytes()
            except OSError:
                answer.setdefault(_UNSEARCHED, []).append(module)
                continue
            find = names_in_bytecode if path.endswith(".pyc") else names_in_source
            for name in sorted(find(content, self.names)):
                answer.setdefault(name, []).append(module)
        return answer


def _sources(names: Iterable[str]) -> dict[str, tuple[str, Identity]]:
    """Module and identity of each source among the modules of these names, by path."""
    found: dict[str, tuple[str, Identity]] = {}
    for name in names:
        path = file_of(sys.modules.get(name))
        if path is not None and path not in found and path.endswith((".py", ".pyc")) and not path.startswith(_OWN):
            found[path] = printable(name), file_identity(path)
    return found


def _key_of(files: Mapping[str, tuple[str, Identity]]) -> str:
    return cache_key([f"{path}\0{identity}" for path, (_, identity) in files.items()])
