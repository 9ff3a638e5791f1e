"""A folder with workloads in which pytest runs as a user runs it, as a command; and a look at what it leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from support.processes import MARK, PATIENCE, describe, kill_all, marked, reset_signals, wait_until
from support.warm_pytest import WarmPytest

Argument = str | os.PathLike[str]

#: Without hypothesis, which takes half a second to start and is not needed.
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:hypothesispytest")

#: Seconds within which the processes of a killed run must be gone; design.md says two, this machine may be busy.
TO_BE_GONE = 30.0

#: Seconds that trials of a stage have between SIGTERM and SIGKILL, where a test does not say otherwise.
GRACE = "0.5"

#: ``faults.py::Hangs[local-none-0] TIMEOUT [ 50%]``, or with the name of an xdist worker in front.
_VERBOSE_LINE = re.compile(r"(?:\[gw\d+\] \[ *\d+%\] (?P<early>[A-Z]+) )?(?P<id>\S+::\S+\])(?: (?P<word>[A-Z]+)\b.*)?")

#: Variables that were exported for this very test run, by a user or by a launcher: the runs on a stage do not see them.
_EXPORTED = {
    name: value
    for name, value in os.environ.items()
    if re.fullmatch(r"PYTEST_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*", name)
    or name in ("OMP_NUM_THREADS", "CI", "BUILD_NUMBER")
}
_EXPORTED.pop("PYTEST_AORTA_HEALTH", None)  # conftest.py turns it off, and xdist's workers inherit that

#: For a run that no variable asks for anything.
NO_SETTINGS = {"PYTEST_AORTA_GRACE": "", "PYTEST_AORTA_HEALTH": ""}

_WARM = WarmPytest()


class Stage:
    def __init__(self, path: Path, pytester: pytest.Pytester | None = None) -> None:
        self.path = path
        self._pytester = pytester
        self.results = path / "results"
        self.mark = str(path)
        #: How trials start, unless the command line says so: forks of one start take a seventh of the time that
        #: processes of their own take. ``None``: as users have it.
        self.isolation: str | None = "fork"
        path.mkdir(parents=True, exist_ok=True)

    def write(self, **files: str) -> None:
        """Write ``name.py`` for every argument; the source may be indented."""
        for name, source in files.items():
            self.write_file(f"{name}.py", source)

    def write_file(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).strip() + "\n")
        return path

    def copy(self, source: Path) -> Path:
        return Path(shutil.copy(source, self.path))

    def register(self, **targets: str) -> None:
        """Have the folder offer workloads as an installed distribution does: name -> ``module:Class``."""
        info = "stage_workloads-1.0.dist-info"
        self.write_file(f"{info}/METADATA", "Metadata-Version: 2.1\nName: stage-workloads\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in targets.items()]
        self.write_file(f"{info}/entry_points.txt", "\n".join(["[aorta.workloads]", *lines]))

    def write_registry(self, name: str = "registry.json", **sections: Mapping[str, Any]) -> Path:
        return self.write_file(name, json.dumps({"version": 1, **sections}))

    def environ(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Our own environment without what belongs to this test run, with the mark."""
        inherited = {name: value for name, value in os.environ.items() if _EXPORTED.get(name) != value}
        inherited.pop("PYTEST_CURRENT_TEST", None)
        found = {"PYTEST_AORTA_GRACE": GRACE, **inherited, MARK: self.mark, **(variables or {})}
        if self.isolation is not None:
            found["PYTEST_ADDOPTS"] = f"--aorta-isolation {self.isolation} {found.get('PYTEST_ADDOPTS', '')}".strip()
        return found

    def start_command(
        self, *command: Argument, env: Mapping[str, str] | None = None, **settings: Any
    ) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        given = {**pipes, "start_new_session": True, **settings}
        words = [os.fspath(word) for word in command]
        return subprocess.Popen(words, cwd=self.path, env=self.environ(env), preexec_fn=reset_signals, **given)

    def start(self, *arguments: Argument, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        return self.start_command(*PYTEST, *arguments, env=env)

    def finish(self, process: subprocess.Popen[bytes]) -> pytest.RunResult:
        begun = time.monotonic()
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as hangs:
            kill_all(self.processes())
            raise AssertionError(f"hangs\n{hangs.stdout!r}\n{hangs.stderr!r}") from None
        return _result(process.returncode, stdout, stderr, time.monotonic() - begun)

    def command(self, *command: Argument, env: Mapping[str, str] | None = None) -> pytest.RunResult:
        """Run a command. What it leaves running may keep its output open."""
        begun = time.monotonic()
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = self.start_command(*command, env=env, stdout=stdout, stderr=stderr)
            try:
                process.wait(PATIENCE)
                hangs = False
            except subprocess.TimeoutExpired:
                kill_all(self.processes())
                hangs = True
            stdout.seek(0)
            stderr.seek(0)
            result = _result(process.wait(), stdout.read(), stderr.read(), time.monotonic() - begun)
        assert not hangs, "hangs"
        return result

    def run(self, *arguments: Argument, env: Mapping[str, str] | None = None) -> pytest.RunResult:
        """Run pytest, in a process of its own."""
        return self._run("pytest", [*PYTEST[3:], *arguments], env)

    def aorta(self, *arguments: Argument, env: Mapping[str, str] | None = None) -> pytest.RunResult:
        return self._run("pytest_aorta", arguments, {"PYTEST_ADDOPTS": " ".join(PYTEST[3:]), **(env or {})})

    def _run(self, module: str, arguments: Sequence[Argument], env: Mapping[str, str] | None) -> pytest.RunResult:
        words = [os.fspath(word) for word in arguments]
        begun = time.monotonic()
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            try:
                ret = _WARM.run(module, words, self.path, self.environ(env), (stdout, stderr), PATIENCE)
            except subprocess.TimeoutExpired:
                kill_all(self.processes())
                raise AssertionError("hangs") from None
            if ret is not None:
                stdout.seek(0)
                stderr.seek(0)
                return _result(ret, stdout.read(), stderr.read(), time.monotonic() - begun)
        return self.command(sys.executable, "-m", module, *words, env=env)

    def run_here(self, *arguments: Argument) -> pytest.RunResult:
        assert self._pytester is not None
        words = [os.fspath(word) for word in arguments]
        with pytest.MonkeyPatch.context() as patch:
            # Of a replay, the record says it.
            if self.isolation is not None and not any(word.startswith("--aorta-replay") for word in words):
                before = os.environ.get("PYTEST_ADDOPTS", "")
                patch.setenv("PYTEST_ADDOPTS", f"--aorta-isolation {self.isolation} {before}".strip())
            return self._pytester.runpytest_inprocess(*PYTEST[3:], *words, syspathinsert=True)

    def torchrun(self, ranks: int, *arguments: Argument, env: Mapping[str, str] | None = None) -> pytest.RunResult:
        """Run ``torchrun --nproc_per_node=RANKS -m pytest ...``, on a port of its own."""
        return self.command(*torchrun_command(ranks), *arguments, env=env)

    def press_ctrl_c(self, process: subprocess.Popen[bytes]) -> str:
        os.killpg(process.pid, signal.SIGINT)
        return self.finish(process).stdout.str()

    def wait_until(self, condition: Callable[[], object]) -> None:
        wait_until(condition)

    def wait_for_file(self, name: str) -> None:
        wait_until((self.path / name).exists, name)

    @staticmethod
    def words(result: pytest.RunResult) -> dict[str, list[str]]:
        """Of a run with ``-v``: the words that were shown for each item, in their order, by its name."""
        found: dict[str, list[str]] = {}
        for line in result.outlines:
            match = _VERBOSE_LINE.match(line)
            if match and (word := match["early"] or match["word"]):
                found.setdefault(match["id"].rpartition("::")[2], []).append(word)
        return found

    def files(self, results: str | None = None) -> list[str]:
        """Paths of all trial files relative to the results directory, sorted; earlier results are not among them."""
        return [path for path in self.everything(results) if not path.startswith(".history/") and _is_trial(path)]

    def earlier(self) -> list[str]:
        """Paths of the trial files in the history, without the name of the run that moved them there."""
        return sorted(
            path.split("/", 2)[2] for path in self.everything() if path.startswith(".history/") and _is_trial(path)
        )

    def everything(self, results: str | None = None) -> list[str]:
        """Paths of all files below the results directory, relative to it, sorted."""
        folder = self.results if results is None else self.path / results
        # A run that goes on removes folders meanwhile; ``rglob`` would raise.
        found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
        return sorted(path.relative_to(folder).as_posix() for path in found if path.is_file())

    def trial(self, path: str, results: str | None = None) -> dict[str, Any]:
        """The content of a trial file, which must be strict JSON; ``path`` relative to the results directory."""
        folder = self.results if results is None else self.path / results
        content = json.loads((folder / path).read_text(), parse_constant=_refuse)
        assert isinstance(content, dict)
        return content

    def trials(self, results: str | None = None) -> dict[str, dict[str, Any]]:
        return {path: self.trial(path, results) for path in self.files(results)}

    def statuses(self, results: str | None = None) -> dict[str, str]:
        return {path: trial["exit_status"] for path, trial in self.trials(results).items()}

    def processes(self) -> list[psutil.Process]:
        """The processes that were started here, directly or not, and that are still there."""
        return marked(self.mark)

    def left_running(self) -> list[str]:
        return [describe(process) for process in self.processes()]

    def wait_until_alone(self) -> None:
        give_up = time.monotonic() + TO_BE_GONE
        while left := self.processes():
            if time.monotonic() > give_up:
                described = [describe(process) for process in left]
                kill_all(left)
                raise AssertionError(f"still running: {described}")
            time.sleep(0.02)

    def close(self) -> None:
        """Check that nothing runs any more, and that no half-written file lies about."""
        self.wait_until_alone()
        assert not [path for path in self.path.rglob("*.tmp") if ".pytest_cache" not in path.parts]


def counts(result: pytest.RunResult) -> dict[str, int]:
    """What pytest's last line counts: ``{"failed": 3, "errors": 1}``."""
    found = result.parseoutcomes()
    return {word: number for word, number in found.items() if word not in ("warnings", "deselected")}


def text(result: pytest.RunResult) -> str:
    return f"{result.stdout}\n{result.stderr}"


def torchrun_command(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", *PYTEST[1:]]


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


def _result(ret: int, stdout: bytes, stderr: bytes, seconds: float) -> pytest.RunResult:
    out, err = (output.decode(errors="replace") for output in (stdout or b"", stderr or b""))
    print(out, end="")
    print(err, end="", file=sys.stderr)
    return pytest.RunResult(ret, out.splitlines(), err.splitlines(), seconds)


def _is_trial(path: str) -> bool:
    return re.search(r"(^|/)trial_\d+(\.repeat_\d+)?\.json$", path) is not None


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"not strict JSON: {constant}")
