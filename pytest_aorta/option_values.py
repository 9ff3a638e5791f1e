"""What each option takes: a text, as on the command line, or a value, from Python; both are refused in the same words.

Every reader gives the option's value, or raises ``ValueError`` with what would be valid.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_aorta.common.request_error import RequestError

#: Longest text of a bad value in a message.
_SHOWN = 200

#: More digits than anything can be counted in; of some thousand, Python refuses to make a number.
_DIGITS = 18

#: As many earlier records of a trial as there are.
UNBOUNDED = sys.maxsize

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"

#: Trials of each cell where a decision is to end them, and no number was given.
TRIALS_UNTIL_DECIDED = 200

#: What follows a separator between variables, which may also be a part of a value.
NEXT_PAIR = r"(?=[A-Za-z_][A-Za-z0-9_]*=)"

#: Days, hours, minutes, seconds.
_DURATION = "".join(rf"(?:([0-9]+(?:\.[0-9]+)?){unit})?" for unit in "dhms")

#: Variables, as they are typed.
PAIRS = "NAME=VALUE[,NAME=VALUE...], a name being letters, digits and underscores"

Reader = Callable[[Any], Any]


def taken(read: Reader, value: Any, source: str) -> Any:
    """What a reader makes of a value.

    Raises:
        RequestError: naming the ``source`` of the value, the value, and what would be valid.
    """
    __tracebackhide__ = True  # pytest would show the arguments
    try:
        return read(value)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"{source}: {shown(value)} is not valid; expected {error}") from None


def shown(value: Any) -> str:
    """A bad value in a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def optional(read: Reader) -> Reader:
    """A reader that takes ``None`` as well."""
    return lambda value: None if value is None else read(value)


def choice(*values: str) -> Reader:
    """A reader of one of some words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return value

    return read


isolation = choice("fork", "spawn", "none")
launcher = choice("auto", "elastic", "torchrun", "external")
order = choice("interleaved", "grouped", "random")


def _whole(value: Any, least: int) -> int | None:
    """A whole number of at least ``least``; ``None`` where it is none."""
    if isinstance(value, str):
        number = int(value) if re.fullmatch(rf"\s*\+?[0-9]{{1,{_DIGITS}}}\s*", value, re.ASCII) else None
    else:
        integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        number = operator.index(value) if integral else None
    return number if number is not None and least <= number < 10**_DIGITS else None


def positive_int(value: Any) -> int:
    """Of trials, steps, ranks."""
    number = _whole(value, 1)
    if number is None:
        raise ValueError("a whole number of at least 1")
    return number


def whole(value: Any) -> int:
    """Of seeds, and of a trial's index."""
    number = _whole(value, 0)
    if number is None:
        raise ValueError("a whole number of at least 0")
    return number


def share(value: str) -> tuple[int, int]:
    """Part I of N, from 1."""
    number, slash, count = value.strip().partition("/")
    found = (_whole(number, 1), _whole(count, 1))
    if not slash or found[0] is None or found[1] is None or found[0] > found[1]:
        raise ValueError("I/N with I from 1 to N, such as 2/4")
    return found[0], found[1]


def slots(value: Any) -> int:
    """Trials at a time; 0 is ``auto``."""
    number = 0 if isinstance(value, str) and value.strip() == "auto" else _whole(value, 1)
    if number is None:
        raise ValueError("a whole number of at least 1, or auto")
    return number


def history(value: Any) -> int:
    """How many earlier records of a trial are kept."""
    number = UNBOUNDED if value in ("all", UNBOUNDED) else _whole(value, 1)
    if number is None:
        raise ValueError("a whole number of at least 1, or all")
    return number


def devices(value: Any) -> tuple[int, ...]:
    """Ids of devices, ascending; none hides all."""
    from pytest_aorta.runtime.resources.devices import parse_devices

    text = value
    if isinstance(value, list | tuple | range):
        ids = [_whole(each, 0) for each in value]
        text = ("," if None in ids else ",".join(map(str, ids))) or "none"
    try:
        return parse_devices(text if isinstance(text, str) else "")
    except ValueError:
        raise ValueError("a list such as 0-3 or 0,2-4, or none") from None


def _number(value: Any) -> float:
    """Not a number where the value is none: then it is in no range."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, str | numbers.Real) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def seconds(value: Any) -> float:
    """A limit of time."""
    if not 0 < _number(value) < math.inf:
        raise ValueError("a number of seconds above 0")
    return _number(value)


def grace(value: Any) -> float:
    """Of a trial that has to end."""
    if not 0 <= _number(value) < math.inf:
        raise ValueError("a number of seconds, 0 for none")
    return _number(value)


def size(value: Any) -> int:
    """Bytes."""
    if isinstance(value, str):
        # ASCII, because without regard to case the Kelvin sign is a K, and then again none.
        found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE | re.ASCII)
        number = int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")) if found else 0
    else:
        integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        number = operator.index(value) if integral else 0
    if not 0 < number < 2**63:  # what the system can count
        raise ValueError("a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)")
    return number


def margin(value: Any) -> float:
    """Of failure rates."""
    if not 0 < _number(value) < 1:
        raise ValueError("a number above 0 and below 1, such as 0.1")
    return _number(value)


def duration(value: Any) -> float:
    """Of a whole run, in seconds: ``8h``, ``1h30m``, ``90s``, or plain seconds."""
    seconds = _number(value)
    if (
        isinstance(value, str)
        and (found := re.fullmatch(_DURATION, value.strip(), re.ASCII)) is not None
        and any(found.groups())
    ):
        seconds = sum(float(part or 0) * unit for part, unit in zip(found.groups(), (86400, 3600, 60, 1), strict=True))
    if not 0 < seconds < math.inf:
        raise ValueError("a duration such as 8h, 1h30m, 90s, or a number of seconds above 0")
    return seconds


def switch(value: Any) -> bool:
    """On or off."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    found = value if isinstance(value, bool) else words.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("true or false")
    return found


def command(value: Any) -> str:
    """A program and its arguments."""
    from pytest_aorta.trials.command_line import words_of

    words_of(value)
    return str(value)


def shown_command(text: str) -> str:
    """What may be repeated of a text that is no command: not the values of variables, which may be secrets."""
    return repr(re.sub(r"\b([A-Za-z_][A-Za-z0-9_]*=)\S*", r"\1...", text))


def regex(value: Any) -> str:
    """What is searched for in lines."""
    from pytest_aorta.trials.output_rules import checked_regex

    return checked_regex(value)


def metric(value: Any) -> str:
    """A regular expression whose groups have names."""
    from pytest_aorta.trials.output_rules import checked_metric

    return checked_metric(value)


def name(value: Any) -> str:
    """Of a workload, an environment, a host."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name")
    return value.strip()


def cluster(value: str) -> str:
    """The name of a cluster, and not a file that stands behind the option."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value) or value.endswith((".toml", ".py")):
        raise ValueError("the name of a cluster: --aorta-submit=CLUSTER, or --aorta-submit behind all files")
    return value


def names(value: Any) -> tuple[str, ...]:
    """Of mitigations, or collectors."""
    given = value.split(",") if isinstance(value, str) else value
    if (
        not isinstance(given, Sequence)
        or not given
        or not all(isinstance(each, str) and each.strip() for each in given)
    ):
        raise ValueError("names separated by commas")
    return tuple(each.strip() for each in given)


def names_or_none(value: Any) -> tuple[str, ...]:
    """From Python, there may be none."""
    return () if isinstance(value, Sequence) and len(value) == 0 and not isinstance(value, str) else names(value)


def folder(value: Any) -> Path:
    """A directory, which need not exist."""
    return Path(value) if isinstance(value, os.PathLike) else Path(name(value))


def trial_file(value: str) -> str:
    """The path of a trial file, or of a folder with some."""
    if not value.strip() or "\0" in value:
        raise ValueError("the path of a trial file, or of a folder with some")
    return value


def file(value: str) -> str:
    """The path of a file to be written."""
    if not value.strip() or "\0" in value or value.endswith("/"):
        raise ValueError("the path of a file")
    return value


def preload(value: Any) -> str | tuple[str, ...]:
    """``auto``, ``none``, or names of modules."""
    if isinstance(value, str) and value.strip() in ("auto", "none"):
        return value.strip()
    try:
        found = names(value)
    except ValueError:
        found = ()
    if not found or not all(re.fullmatch(_MODULE, name) for name in found) or {"auto", "none"} & {*found}:
        raise ValueError("auto, none, or names of modules separated by commas, such as torch,numpy")
    return found


def files(value: Any) -> tuple[Path, ...]:
    """Paths, or one path."""
    return tuple(map(folder, _several(value, "a name")))


def pairs(text: str) -> dict[str, str]:
    """``K=V[,K=V]``; a comma starts a new pair only before ``NAME=``, so values may hold commas."""
    found = {}
    for part in re.split(f",{NEXT_PAIR}", text):
        key, equals, value = part.partition("=")
        if not equals or not is_variable(key, value):
            raise ValueError(PAIRS)
        found[key] = value
    return found


def is_variable(key: str, value: str) -> bool:
    """Whether an environment can hold it."""
    return re.fullmatch(_VARIABLE, key) is not None and "\0" not in value


def shown_pairs(text: str) -> str:
    """What may be repeated of a text that is no ``K=V[,K=V]``: the wrong name, for all else may be a secret."""
    parts = [part.partition("=") for part in re.split(f",{NEXT_PAIR}", text)]
    key, equals, value = next((part for part in parts if not re.fullmatch(_VARIABLE, part[0]) or not part[1]), parts[0])
    if not equals:
        return "a text without '='"
    # A secret in Base64 ends like that, and a name that nothing follows is more likely one.
    return repr(key) if value.strip("=") else "a text with nothing after its '='"


def key_value(text: str) -> tuple[str, str]:
    """An option of a workload."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError("KEY=VALUE")
    return key.strip(), value


def options(value: Any) -> dict[str, Any]:
    """Options of a workload, with values of any type."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key.strip() for key in value):
        raise ValueError("KEY=VALUE")
    return dict(value)


def elastic_option(text: str) -> tuple[str, str]:
    """An option of the agent that starts the ranks."""
    from pytest_aorta.trials.elastic_options import parse_elastic

    key, _, value = text.partition("=")
    parse_elastic(key.strip(), value)
    return key.strip(), value


def elastic(value: Any) -> Any:
    """``ElasticOptions``, or a mapping of their values."""
    from pytest_aorta.trials.elastic_options import ElasticOptions, elastic_options

    if not isinstance(value, ElasticOptions | Mapping):
        raise ValueError("ElasticOptions, or a mapping of their names to values")
    return elastic_options(value.to_plain() if isinstance(value, ElasticOptions) else value)


def hosts(value: Any, source: str = "hosts") -> tuple[str, ...]:
    """Specifications of hosts, ``2*popen`` being two of them.

    Raises:
        RequestError: one is not valid. No message has the value of a variable: it may be a secret.
    """
    __tracebackhide__ = True
    texts = _several(value, "a name")
    for each in texts:
        taken(name, each, source)
    if not texts:
        return ()
    from pytest_aorta.runtime.hosts.specs import expand_without_secrets

    try:
        return tuple(expand_without_secrets(texts))
    except ValueError as error:
        raise RequestError(f"{source}: {error}") from None


def _several(value: Any, expected: str) -> Sequence[Any]:
    """One text or path is one, and not several letters."""
    if isinstance(value, str | os.PathLike):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError(expected)
    return value
