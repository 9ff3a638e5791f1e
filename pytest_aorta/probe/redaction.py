"""What is a secret: by the name it goes by, or by what the value looks like."""

from __future__ import annotations

import re

REDACTED = "<redacted>"
"""Stands for a value that is a secret or carries one inside it."""

DIGEST = "sha256:"
"""How a text begins that stands for a value which is not recorded itself, but may be compared."""

# Known prefixes may have tokens behind them (SLURM_JWT is set by SLURM itself). Losing a harmless value costs a line in
# a report, publishing a token costs more: so these match anywhere in the name ...
_SECRET_WORDS = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|API_KEY|ACCESSKEY|PRIVATEKEY|JWT"
)
# ... and these, which are also syllables of harmless words, as a whole part between underscores.
_SECRET_PARTS = frozenset(
    {"AUTH", "BEARER", "COOKIE", "CRED", "CREDS", "KEY", "KEYS", "OAUTH", "PRIVATE", "PW", "PWD", "SIGNATURE"}
)
# sbatch --export=ALL,HF_TOKEN=... comes back here with the assignments inside; nothing in it is worth that.
_NEVER = frozenset({"SLURM_EXPORT_ENV"})

_USER_IN_URL = re.compile(r"://[^/\s@]*@")
# NAME=value, and "name": value. Not NAME:value: the folders of a search path are separated like that.
_ASSIGNMENT = re.compile(r"(\w+)[\"']?\s*=|[\"'](\w+)[\"']\s*:")
# A word of a command line; blanks inside double quotes belong to it.
_WORD = re.compile(r'(?:"[^"]*"?|[^\s"])+')
_NOT_IN_NAMES = re.compile(r"\W+")


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name is to be taken for a secret."""
    if name in _NEVER:
        return True
    upper = name.upper()
    if _SECRET_WORDS.search(upper):
        return True
    parts = upper.split("_")
    # PASS inside a name is a compiler's pass (TRITON_DUMP_PASS_STAGES), at its end more likely a password.
    return parts[-1] == "PASS" or not _SECRET_PARTS.isdisjoint(parts)


def has_secret(value: str) -> bool:
    """Whether a value has a user in a URL, or an assignment to the name of a secret."""
    if "://" in value and _USER_IN_URL.search(value):
        return True
    return any(is_secret_name(left or right) for left, right in _ASSIGNMENT.findall(value))


def redacted_command_line(line: str) -> str:
    """The words of ``line`` by the rules for variables: ``name=value`` is one, so is ``--name`` with the next word.

    Names keep their dots and dashes, which count as underscores (``rd.api-key=x`` is the name ``rd_api_key``).
    """
    words: list[str] = []
    value_follows = False
    for word in _WORD.findall(line):
        name, assigns, value = word.partition("=")
        secret = is_secret_name(_NOT_IN_NAMES.sub("_", name).strip("_"))
        option = word.startswith("-")
        if value_follows and not option:
            words.append(REDACTED)
        elif assigns:
            words.append(f"{name}={REDACTED}" if secret or has_secret(value) else word)
        else:
            words.append(REDACTED if has_secret(word) else word)
        value_follows = option and secret and not assigns
    return " ".join(words)
