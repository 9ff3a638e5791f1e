"""``pytest-aorta bundle``: results as one archive for a ticket, without secrets, hosts, addresses and homes."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import socket
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from pytest_aorta.common.texts import one_line
from pytest_aorta.probe.variables import REDACTED, is_secret_name
from pytest_aorta.settings import RequestError

#: Tokens that say by their form what they are: of GitHub, GitLab, Hugging Face, AWS, Slack, OpenAI, Google; JWTs.
_TOKENS = re.compile(
    r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[abprs]-[\w-]{10,}|sk-[\w-]{20,}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]{0,8000}?-----END [A-Z ]*PRIVATE KEY-----"
)
#: Lower-case words in lines that may name a secret; most lines have none.
_HINTS = ("token", "secret", "pass", "key", "jwt", "auth", "cookie", "cred", "bearer", "pw", "private", "signature")
_ASSIGNED = re.compile(
    r"(?P<name>\b[A-Za-z][\w.-]*)(?P<between>\\?[\"']?\s*[=:]\s*(?:(?:bearer|basic)\s+)?\\?[\"']?)(?P<value>[^\s\"'\\,;&}\])]+)",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(?P<name>--[A-Za-z][\w-]*)(?P<between>[\"',\s]+)(?P<value>[^\s\"'\\,-][^\s\"'\\,]*)")
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@\"'\\]+(?=@)")
_BEARER = re.compile(r"(?<=\bBearer )[\w.~+/=-]{8,}", re.IGNORECASE)
_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s\"'\\:,;)]+|(?<![\w./~-])/root(?![\w.-])")
_ADDRESS = re.compile(
    r"(?<![\w.:=-])(?:(?:\d{1,3}\.){3}\d{1,3}(?![\w.-])|(?=[0-9a-f:]*::?[0-9a-f])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w.:]))",
    re.IGNORECASE,
)

#: Values that are never secrets: JSON constants, numbers, and substitutes.
_HARMLESS = re.compile(r"null|none|true|false|unset|[{\[]|[-+\d.]+(?:e[-+]?\d+)?|<redacted>?", re.IGNORECASE)

#: Words that name secrets in the environment, and anything in a record or a log.
_ORDINARY = frozenset({"auth", "key", "keys", "private", "pwd", "signature", "signatures"})

#: A secret that is shorter may be an ordinary word.
_SHORTEST = 8

#: Four numbers with dots are versions there.
_VERSIONS = re.compile(r"packages-\w+\.json")

_README = """\
Results of {records} trials of pytest-aorta {version}; {failed} of them failed.

results/          records (trial_*.json), matrix.md (the table), and the logs of {logs}
manifest.json     each file with what was replaced in it, and what was left out

Replaced: values of secrets ({redacted}), homes (~), hosts (host-1), addresses (address-1).
{checked}

The table again:   pytest-aorta report results
A trial again, with its seeds, on a machine that has its code:
{replays}
"""


class Redactor:
    """Replaces secrets, hosts and addresses in texts; a host or address has the same substitute in all files.

    Args:
        hosts: names of machines.
        environ: values of its secret variables are replaced wherever they occur.
    """

    def __init__(self, hosts: set[str], environ: Mapping[str, str]) -> None:
        self.counts: Counter[str] = Counter()
        self._addresses: dict[str, str] = {}
        short = {host.partition(".")[0] for host in hosts}
        names = sorted({name for name in hosts | short if len(name) > 1 and name != "localhost"}, key=len, reverse=True)
        self._hosts: dict[str, str] = {}
        self._host = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])") if names else None
        values = {value for name, value in environ.items() if is_secret_name(name) and len(value) >= _SHORTEST}
        written = values | {json.dumps(value)[1:-1] for value in values}
        # A folder may be the value of a variable with PWD in its name.
        known = sorted((value for value in written if not os.path.exists(value)), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def redacted(self, text: str, *, versions: bool = False) -> str:
        """The text with substitutes; ``versions``: four numbers with dots are a version, not an address."""
        for pattern in filter(None, (self._known, _TOKENS, _USER_IN_URL, _BEARER)):
            text = self._replace("secrets", pattern, lambda match: REDACTED, text)
        text = "".join(map(self._without_values, text.splitlines(keepends=True)))
        text = self._replace("homes", _HOME, lambda match: "~", text)
        if self._host is not None:
            text = self._replace("hosts", self._host, self._named, text)
        return text if versions else self._replace("addresses", _ADDRESS, self._address, text)

    def _replace(self, what: str, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str], text: str) -> str:
        def replacement(match: re.Match[str]) -> str:
            new = by(match)
            if new != match[0]:
                self.counts[what] += 1
            return new

        return pattern.sub(replacement, text)

    def _without_values(self, line: str) -> str:
        lower = line.lower()
        if not any(hint in lower for hint in _HINTS):
            return line
        line = self._replace("secrets", _ASSIGNED, _without_value, line)
        return self._replace("secrets", _OPTION, _without_value, line)

    def _named(self, match: re.Match[str]) -> str:
        return self._hosts.setdefault(match[0].partition(".")[0], f"host-{len(self._hosts) + 1}")

    def _address(self, match: re.Match[str]) -> str:
        if match[0] in self._addresses:
            return self._addresses[match[0]]
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return self._addresses.setdefault(match[0], f"address-{len(self._addresses) + 1}")


def _without_value(match: re.Match[str]) -> str:
    name = re.sub(r"\W+", "_", match["name"]).strip("_")
    if name.lower() in _ORDINARY or not is_secret_name(name) or _HARMLESS.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{REDACTED}"


@click.command("bundle")
@click.argument("results", type=click.Path(path_type=Path), default="results")
@click.option("-o", "--output", type=click.Path(path_type=Path), default="aorta-bundle.tar.gz", help="The archive.")
@click.option("--all-logs", is_flag=True, help="Include logs and artifacts of passed trials.")
def bundle(results: Path, output: Path, all_logs: bool) -> None:
    """Replaces secrets, home folders, host names and addresses, and counts them by file in manifest.json. Leaves out
    files that are no text, which cannot be checked. Read the archive before you send it: a secret without a telling
    name or form is not found.
    """
    from pytest_aorta._version import __version__
    from pytest_aorta.triage.reading import Results

    if output.exists():
        raise RequestError(f"{output} is there already; choose another file with -o")
    read = Results(results)
    trials = list(read)
    if not trials:
        raise read.nothing_found()
    hosts = {socket.gethostname(), *(str(trial.record.get("host") or "") for trial in trials)}
    redactor = Redactor(hosts, os.environ)
    packed: list[dict[str, object]] = []
    total: Counter[str] = Counter()
    left_out: dict[str, str] = {redactor.redacted(unreadable.file): unreadable.reason for unreadable in read.unreadable}
    contents: dict[str, str] = {}
    files: dict[str, None] = {}
    for trial in trials:
        files[trial.file] = None
        if all_logs or trial.record["exit_status"] != "ok":
            for path in (trial.record.get("artifacts") or {}).values():
                if not os.path.isabs(path):  # TMPDIR is on the host that ran it
                    files[os.path.normpath(os.path.join(os.path.dirname(trial.file), path))] = None
    for pattern in ("matrix.*", "packages-*.json"):
        files.update(dict.fromkeys(sorted(path.name for path in read.folder.glob(pattern))))
    for file in files:
        name = redactor.redacted(file)
        redactor.counts.clear()
        try:
            path = read.folder / file
            if not path.resolve().is_relative_to(read.folder.resolve()):
                raise ValueError("it is outside of the results")
            if not path.is_file():
                raise ValueError("it is no file")
            text = path.read_bytes().decode()
            if "\0" in text:
                raise ValueError("no text")
            new = redactor.redacted(text, versions=_VERSIONS.fullmatch(file) is not None)
            if file.endswith(".json"):
                json.loads(new)
        except (OSError, ValueError) as error:
            left_out[name] = (
                "no text" if isinstance(error, UnicodeDecodeError) else redactor.redacted(one_line(str(error)))
            )
            continue
        contents[f"results/{name}"] = new
        packed.append({"file": name, "bytes": len(new.encode()), "replaced": dict(redactor.counts)})
        total += redactor.counts
    failed = [redactor.redacted(trial.file) for trial in trials if trial.record["exit_status"] != "ok"]
    missed = [name for name, text in contents.items() if redactor.redacted(text, versions=True) != text]
    contents["manifest.json"] = json.dumps({"version": 1, "files": packed, "left_out": left_out}, indent=1)
    contents["README.txt"] = _README.format(
        records=len(trials),
        version=__version__,
        failed=len(failed),
        logs="all trials" if all_logs else "failed trials",
        redacted=REDACTED,
        checked="A second pass found no more of them." if not missed else f"Look at: {', '.join(missed)}",
        replays="".join(f"  pytest --aorta-replay results/{file}\n" for file in failed[:20]) or "  (none failed)\n",
    )
    top = output.name.removesuffix(".tar.gz").removesuffix(".tgz")
    try:
        with tarfile.open(output, "x:gz") as archive:
            for file, text in contents.items():
                entry = tarfile.TarInfo(f"{top}/{file}")  # without the names of users
                data = text.encode()
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise RequestError(f"{output} cannot be written: {error.strerror}") from None
    click.echo(f"bundle: {output} ({len(trials)} trials, {len(failed)} failed; {len(packed)} files)")
    if total:
        click.echo("replaced: " + ", ".join(f"{count} {what}" for what, count in sorted(total.items())))
    for name, why in left_out.items():
        click.echo(f"left out: {name}: {why}")
