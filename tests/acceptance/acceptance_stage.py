"""Where acceptance tests play: a folder in which commands run as a user types them, and a look at what they leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import time
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psutil

#: Every process that a stage starts, directly or not, has this variable in its environment.
MARK = "AORTA_ACCEPTANCE_STAGE"

#: Seconds after which a command has hung. No test waits for it to pass.
PATIENCE = 180.0

#: Seconds within which the processes of a killed run must be gone.
TO_BE_GONE = 10.0

_HERE = Path(__file__).parent

#: Set for this very test run, and none of the business of the runs that it starts.
_OURS = re.compile(
    r"PYTEST_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|OMP_NUM_THREADS"
)

T = TypeVar("T")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """All that it wrote."""
        return f"{self.stdout}\n{self.stderr}"

    @property
    def counts(self) -> dict[str, int]:
        """What pytest's last line counts: ``{"failed": 3, "error": 1}``; there must be exactly one such line."""
        lines = re.findall(r"^=*\s?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s.*$", self.stdout, re.MULTILINE)
        assert len(lines) == 1, self.text
        found = re.findall(r"(\d+) (\w+?)s?\b", lines[0])
        return {word: int(number) for number, word in found if word not in ("warning", "deselected")}


class Stage:
    """A folder in which pytest runs.

    Whatever runs there carries a mark in its environment, so that ``close`` can tell whether something is left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> Path:
        """Write a file; the text may be indented."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def bring(self, name: str) -> Path:
        """Copy a file that lies beside this one."""
        return Path(shutil.copy(_HERE / name, self.path))

    def register(self, **targets: str) -> None:
        """Offer workloads from the folder as an installed distribution does: name -> ``module:Class``."""
        info = "stage_workloads-1.0.dist-info"
        self.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: stage-workloads\nVersion: 1.0\n")
        lines = "".join(f"{name} = {target}\n" for name, target in targets.items())
        self.write(f"{info}/entry_points.txt", f"[aorta.workloads]\n{lines}")

    def registry(self, **sections: Mapping[str, Any]) -> Path:
        """Write a registry file with ``mitigations=`` and ``environments=``."""
        return self.write("registry.json", json.dumps({"version": 1, **sections}))

    def environ(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Our own environment without what belongs to this test run, with the mark."""
        inherited = {name: value for name, value in os.environ.items() if not _OURS.fullmatch(name)}
        return {**inherited, MARK: str(self.path), **(variables or {})}

    def start(self, *command: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command in the folder; its output goes to files."""
        with (self.path / "stdout.txt").open("w") as stdout, (self.path / "stderr.txt").open("w") as stderr:
            return subprocess.Popen(
                [str(word) for word in command],
                cwd=self.path,
                env=self.environ(env),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )

    def finish(self, process: subprocess.Popen[str]) -> Finished:
        """Wait for a command that ``start`` started."""
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"hangs\n{self._output('stdout')}\n{self._output('stderr')}") from None
        return Finished(process.returncode, self._output("stdout"), self._output("stderr"))

    def _output(self, name: str) -> str:
        return (self.path / f"{name}.txt").read_text(errors="replace")

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None) -> Finished:
        """Run a command in the folder."""
        return self.finish(self.start(*command, env=env))

    def pytest(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Finished:
        """Run pytest."""
        return self.run(*pytest_command(), *arguments, env=env)

    def torchrun(self, ranks: int, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Finished:
        """Run ``torchrun --nproc_per_node=RANKS -m pytest ...``, on a port of its own."""
        return self.run(*torchrun_command(ranks), *arguments, env=env)

    def files(self, results: str = "results") -> list[str]:
        """Paths of all trial files below a results directory, sorted."""
        folder = self.path / results
        found = (path.relative_to(folder).as_posix() for path in folder.rglob("trial_*.json"))
        return sorted(path for path in found if not path.startswith(".history/"))

    def trial(self, path: str, results: str = "results") -> dict[str, Any]:
        """The content of a trial file, which must be strict JSON."""
        content = json.loads((self.path / results / path).read_text(), parse_constant=_refuse)
        assert isinstance(content, dict)
        return content

    def trials(self, results: str = "results") -> dict[str, dict[str, Any]]:
        """The contents of all trial files, by path."""
        return {path: self.trial(path, results) for path in self.files(results)}

    def statuses(self, results: str = "results") -> dict[str, str]:
        """The exit status in every trial file, by path."""
        return {path: trial["exit_status"] for path, trial in self.trials(results).items()}

    def processes(self) -> list[psutil.Process]:
        """What was started here and still runs."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.path) and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill_all(self) -> None:
        """End what still runs."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue

    def wait_until_alone(self, seconds: float = TO_BE_GONE) -> None:
        """Wait until nothing of this stage runs any more."""
        give_up = time.monotonic() + seconds
        while left := self.processes():
            if time.monotonic() > give_up:
                told = [_describe(process) for process in left]
                self.kill_all()
                raise AssertionError(f"still running: {told}")
            time.sleep(0.05)

    def close(self) -> None:
        """Nothing may run any more, and no half-written file may lie about."""
        self.wait_until_alone()
        assert not [path for path in self.path.rglob("*.tmp") if ".pytest_cache" not in path.parts]


def make_venv(path: Path, *, with_ours: bool) -> Path:
    """Create a virtual environment; its interpreter, which sees all that this one has installed if it ``with_ours``.

    (``system_site_packages`` would show it those of the interpreter that ours was made from.)
    """
    venv.create(path, with_pip=False, symlinks=True)
    if with_ours:
        (site_packages,) = (path / "lib").glob("python3*/site-packages")
        installed = sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in installed]
        (site_packages / "installed_elsewhere.pth").write_text("".join(lines))
    return path / "bin" / "python"


def wait_for(probe: Callable[[], T | None], what: str, seconds: float = 60.0) -> T:
    """The first thing that ``probe`` returns which is not None; ``seconds`` are for the case that it never comes."""
    give_up = time.monotonic() + seconds
    while True:
        found = probe()
        if found is not None:
            return found
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.02)


def pytest_command() -> list[str]:
    """Without the plugin of hypothesis, which takes half a second to start and is not needed."""
    return [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]


def torchrun_command(ranks: int) -> list[str]:
    """torchrun's default port is the same for everybody on a machine; a standalone one takes a free one."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return [*launcher, *pytest_command()[1:]]


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"not strict JSON: {constant}")
