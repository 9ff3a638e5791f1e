"""What two environments can be compared by: the facts of a snapshot under the names that people call them.

Left out is what differs between any two trials (a process id, a time, the load), what only repeats another fact, and
places on the disk: two machines that are set up alike have equal facts.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aorta.common.texts import parse_ranges
from pytest_aorta.probe.variables import DIGEST, OF_A_SESSION, as_setting

#: A fact: a text, or words of which some may come and others go.
Value = str | tuple[str, ...]

#: The name of the fact that says which GPUs there are: its values need none before them.
GPUS = "GPUs"

#: Characters of a commit that are shown.
_COMMIT = 12


def _rules() -> Iterator[tuple[str, str, str, str]]:
    for line in Path(__file__).with_name("facts.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            path, name, nothing, implied_by = f"{line}\t\t\t".split("\t")[:4]
            yield path, name, nothing or "none", implied_by


#: Expression, name, what stands where there is none, and the fact that it changes with; see there.
RULES = tuple(_rules())

#: The section of builds and databases of kernels; what it does not have may be in others than it, unread, or unloaded.
KERNELS = "end.kernels"

#: Sections in which versions of software are.
VERSIONS = frozenset(("accelerator", "torch", "packages"))

#: Sections of a snapshot that are compared.
SECTIONS = (
    *("accelerator", "torch", "packages", "python", "env_vars", "end.torch", KERNELS, "end.libraries"),
    *("host", "process", "runtime_context", "compilers", "git", "other_variables"),
)


def _show(path: str, value: Any) -> Value:
    if path.startswith(KERNELS):
        return f"{DIGEST}{str(value).partition(':')[2]}"
    if path.startswith("end.libraries."):
        return tuple(sorted({os.path.basename(str(each)) for each in value}))
    if path == "host.kernel_command_line":
        return tuple(dict.fromkeys(str(value).split()))
    if path == "process.cpu_affinity":
        return str(sum(map(len, parse_ranges(str(value)))))
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return tuple(dict.fromkeys(map(str, value)))
    if path.endswith(("_bytes", "_mhz")) and isinstance(value, int | float):
        return f"{value / 2**30:.1f} GiB".replace(".0 ", " ") if path.endswith("_bytes") else f"{value:.0f} MHz"
    return str(value)[:_COMMIT] if path in ("git.commit", "torch.git_version") else str(value)


#: Keys of a section that are other ones in every trial: without them, most trials have equal sections.
_VOLATILE: Mapping[str, frozenset[str]] = {
    "env_vars": frozenset(("AORTA_TRIAL", "AORTA_TRIAL_DIR", "AORTA_TRIAL_INDEX", "AORTA_TRIAL_SEED", "TMPDIR")),
    "process": frozenset(("pid", "ppid", "cwd", "memory_available_bytes", "load_average")),
    "end.libraries": frozenset(("count",)),
}

#: Sections of variables: those whose values are recorded, and the digests of others, with their machine behind it.
VARIABLES, OTHER_VARIABLES = "env_vars", "other_variables"

#: The list of all packages in a snapshot that pytest-aorta env has written.
INSTALLED = "installed"

#: What is compared of each GPU, besides its name.
_OF_A_GPU = (
    *("memory_total_bytes", "gfx", "compute_capability", "compute_units", "vbios_version", "mig_mode", "ecc_mode"),
    *("current_compute_partition", "current_memory_partition"),
)


class Fact(NamedTuple):
    """What a fact is called, and the section it is in; sorted by importance. The rest as in ``RULES``."""

    rank: int
    name: str
    section: str
    nothing: str = "none"
    implied_by: str = ""


#: What stands for all packages where their lists are not at hand.
PACKAGES = Fact(len(RULES), "installed packages", "packages")


def sections(env: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in SECTIONS:
        content: Any = env
        for key in name.split("."):
            content = content.get(key) if isinstance(content, Mapping) else None
        if name == "git" and content is None and name in env:
            content = {}  # the workload lies in no repository
        if name == OTHER_VARIABLES and isinstance(content, Mapping) and isinstance(content.get("digests"), Mapping):
            digests = content["digests"].items()
            hidden = {each: f"{DIGEST}{digest}" for each, digest in digests if not OF_A_SESSION.fullmatch(each)}
            yield f"{name} {content.get('of')}", hidden
        elif isinstance(content, Mapping) and (content or name in ("env_vars", "git")):
            volatile = _VOLATILE.get(name)
            kept = content if volatile is None else {key: content[key] for key in content if key not in volatile}
            if name == "env_vars":
                settings = {variable: as_setting(variable, str(value)) for variable, value in kept.items()}
                kept = {variable: value for variable, value in settings.items() if value is not None}
            yield name, kept


def is_complete(section: str, reasons: Iterable[object]) -> bool:
    """Whether what a section does not have is not there, as opposed to: could not be found out."""
    return not any(str(reason).startswith(section.partition(".")[0]) for reason in reasons)


def facts_of_section(section: str, content: Mapping[str, Any]) -> dict[Fact, Value]:
    """The facts in one of the ``sections``; those that are not there are missing."""
    if section == "accelerator":
        content = {**content, **_gpus(content)}
    facts: dict[Fact, Value] = {}
    for path, value in _leaves(section, content):
        fact = _fact(section, path) if value is not None else None
        if fact is not None:
            try:
                shown = _show(path, value)
            except (TypeError, ValueError):  # not the type that this version records
                shown = str(value)
            facts.setdefault(fact, shown)
    return facts


@lru_cache(maxsize=10_000)
def _fact(section: str, path: str) -> Fact | None:
    for rank, (expression, name, nothing, implied_by) in enumerate(RULES):
        if (match := re.fullmatch(expression, path, re.DOTALL)) is not None:
            name = match.expand(name)
            if not _is_variable(section) and section != KERNELS and not path.startswith("packages."):
                name = name.replace("_", " ").replace(".", " ")
            return Fact(rank, name, section, nothing, match.expand(implied_by)) if name else None
    return None


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    else:
        yield path, value


def _gpus(accelerator: Mapping[str, Any]) -> dict[str, Any]:
    names: Counter[str] = Counter()
    values: dict[str, set[str]] = {}
    for vendor in ("nvidia", "amd"):
        facts = accelerator.get(vendor)
        devices = facts.get("devices") if isinstance(facts, Mapping) else None
        for device in devices if isinstance(devices, list) else []:
            if not isinstance(device, Mapping):
                continue
            own = str(device.get("name") or device.get("product_name") or device.get("gfx") or "GPU")
            names[own if own.lower().startswith(vendor) else f"{vendor.upper()} {own}"] += 1
            for key in _OF_A_GPU:
                if (value := device.get(key)) is not None:
                    values.setdefault(key, set()).add(str(_show(key, value)))
    return {
        "gpus": ", ".join(f"{number} {name}" for name, number in sorted(names.items())) or None,
        "gpu": {key: sorted(those) for key, those in values.items()},
    }


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
        parts = []
        for what, words, others in (("without", one, two), ("with", two, one)):
            if changed := [_cut(word) for word in words if word not in others]:
                more = len(changed) - _MOST
                parts.append(f"{what} {', '.join(changed[:_MOST])}" + (f" and {more} more" if more > 0 else ""))
        return f"{name}: {', '.join(parts) or 'in another order'}"
    was_absent, is_absent = ([value for value, _ in values] == [None] for values in (before, after))
    if fact.section == FILES and (was_absent or is_absent):
        return f"{name} is {'new' if was_absent else 'gone'}"
    if is_hidden(one) and is_hidden(two):
        return f"{name} changed{', value not recorded' if _is_variable(fact.section) else ''}"
    return f"{name} {_side(fact, before)} -> {_side(fact, after)}".strip()


def _is_variable(section: str) -> bool:
    return section == VARIABLES or section.startswith(OTHER_VARIABLES)


def is_hidden(value: Value | None) -> bool:
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
        return "(value not recorded)" if _is_variable(fact.section) else f"({str(value)[len(DIGEST) :][:8]})"
    return _cut(", ".join(value) if isinstance(value, tuple) else value) or "(empty)"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
