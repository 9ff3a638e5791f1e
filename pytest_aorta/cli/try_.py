"""``pytest-aorta try``: says what a command does and how it fails, and proposes a line of pytest that tests fixes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import re
import select
import shlex
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from pytest_aorta.cli.activity import Activity
from pytest_aorta.common.cache import cache_folder
from pytest_aorta.common.texts import counted, duration_text, first_names, one_line, read_tail
from pytest_aorta.registry import BUILTIN_MITIGATIONS
from pytest_aorta.runtime.resources.devices import find_devices
from pytest_aorta.settings import Reader, RequestError, seconds, shown_command
from pytest_aorta.triage.columns import bound_text
from pytest_aorta.triage.draws import group_by_start, start_rate_below
from pytest_aorta.triage.facts import judged_together
from pytest_aorta.triage.power import FREQUENT, LONGEST, UNTIL_IT_FAILS, smallest_fault
from pytest_aorta.triage.rates import rate_below, wilson
from pytest_aorta.triage.reading import RecordedTrial, Results
from pytest_aorta.trials.command_line import checked_command, command_words, files_in, launcher_in, program_not_found
from pytest_aorta.trials.lines import plain_line
from pytest_aorta.trials.output import OutputFindings, OutputRules
from pytest_aorta.trials.readers import guessed_options

#: Runs that are enough: if some have failed, and if none has.
_ENOUGH, _MOST = 4, 20

#: Factor on the time limit for a first run that keeps printing, and for its start.
_FIRST = 5

#: Runs that show whether a first one hangs that has waited all the time: one of them ends, or none does.
_OTHERS = 4

#: Seconds between two looks at what the processes do, of what is said of them, and for the end of a pipe.
_LOOK, _WINDOW, _PIPE = 0.5, 10.0, 5.0

#: A run that takes so many times as long as the longest one that has ended by itself hangs; and seconds at least, or
#: where none has.
_TIMES_LONGER, _SHORTEST_TIMEOUT, _TIMEOUT = 5, 5, 10

#: Files in the working directory, and their bytes, up to which each trial gets a copy of it.
_MOST_FILES, _MOST_BYTES = 2000, 50 * 2**20

#: Bytes of the output that are looked at for steps.
_LOOKED_AT = 2**20

#: Ends of a metric in which two groups are looked for.
_FEWEST_IN_GROUPS = 6

#: Exceptions that say that something is not there.
_MISSING = ("ModuleNotFoundError", "FileNotFoundError", "CommandNotFound")

#: Trials of a cell, and candidates on a CPU and on GPUs.
_FEWEST_TRIALS, _MOST_TRIALS, _CANDIDATES, _CANDIDATES_ON_GPU = 20, 300, 3, 5

#: Seconds that the measurement has at least, and trials of each cell that it has time for.
_TIME, _ROUNDS = 240.0, 10

#: Physical cores for each trial, where several run at a time.
_CORES = 4

#: Imports of scripts, and packages that bring torch or other compiled code.
_IMPORTS = re.compile(r"^\s*(?:import|from)\s.+", re.MULTILINE)
_TORCH = {"torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "torchvision"}
_NATIVE = {"numpy", "scipy", "pandas", "jax", "tensorflow", "cupy", "ctypes", "cffi"}

_OF_TORCHRUN = ("torchrun", "accelerate", "torch.distributed.run", "torch.distributed.launch")

#: Verbs for failures, by sign.
_VERBS = {"hang": "hangs", "crash": "crashes", "nan": "says NaN", "oom": "runs out of memory", "wrong": "fails"}


class _Candidate(NamedTuple):
    name: str
    parts: str
    signs: str
    why: str


#: Those to try first come first, with what the program must have and what one thing must have been seen.
#:
#: ``parts`` are of cpu (it uses no GPU), gpu, nvidia, amd, torch, native (code in C) and ranks; ``signs`` of nan,
#: crash, hang, oom and wrong (any other failure), none for anything. ``registry`` says what reads each.
_CANDIDATES_OF = (
    _Candidate("omp_1", "cpu", "", "one thread: no races between threads, and sums in one order"),
    _Candidate("hip_launch_blocking", "amd", "nan crash wrong", "no kernel runs beside another one"),
    _Candidate("cuda_launch_blocking", "nvidia", "nan crash wrong", "no kernel runs beside another one"),
    _Candidate("gpu_max_hw_queues_2", "amd", "", "fewer hardware queues: streams overlap less"),
    _Candidate("nccl_launch_order_implicit", "gpu ranks", "hang", "collectives start in one order"),
    _Candidate("nccl_p2p_off", "gpu ranks", "hang crash nan wrong", "GPUs talk through host memory"),
    _Candidate("hsa_no_sdma", "amd", "hang nan wrong", "copies by kernels, not by the SDMA engines"),
    _Candidate("rccl_gfx942_cheap_fence_off", "amd ranks", "nan wrong", "a full fence in RCCL"),
    _Candidate("nccl_proto_simple", "gpu ranks", "nan wrong", "one protocol of NCCL"),
    _Candidate("pytorch_alloc_expandable_segments", "gpu torch", "oom", "GPU memory fragments less"),
    _Candidate("pytorch_no_cuda_memory_caching", "gpu torch", "nan crash wrong", "torch reuses no block of GPU memory"),
    _Candidate("nvidia_tf32_override_off", "nvidia", "nan wrong", "float32 products without TF32"),
    _Candidate("cublas_workspace_4096_8", "nvidia", "wrong", "sums of cuBLAS in one order"),
    _Candidate("aten_cpu_default", "cpu torch", "nan wrong", "torch's kernels without vector instructions"),
    _Candidate("mmap_always", "cpu native", "nan crash", "large blocks start as zeros; none is used after its end"),
    _Candidate("malloc_perturb", "cpu native", "nan crash", "fills memory: a change shows reads of unwritten memory"),
    _Candidate("mkl_cbwr_compatible", "cpu torch", "nan wrong", "one code path of MKL"),
)


@click.command("try", context_settings={"allow_interspersed_args": False})
@click.option("--yes", is_flag=True, help="Run the proposed line without asking.")
@click.option(
    "--time", "looking", default="1m", metavar="SEC", help="Time limit for all runs (default 1m), from the first start."
)
@click.option("--timeout", metavar="SEC", help="Treat longer runs as hung (default: derived from the first runs).")
@click.option(
    "--stdin", "stdin", metavar="FILE", help="Standard input of each run (default: what is piped here, else nothing)."
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT]...")
def try_(words: tuple[str, ...], yes: bool, looking: str, timeout: str | None, stdin: str | None) -> None:
    """Example: pytest-aorta try -- python train.py --steps 40. Ctrl-C stops the runs and prints what they showed."""
    command = words[0] if len(words) == 1 and " " in words[0] else shlex.join(words)
    _checked("the command", checked_command, command)
    if problem := program_not_found(command_words(command), os.environ.get("PATH", os.defpath)):
        raise RequestError(f"the command {shown_command(command)}: {problem}")
    limits = _checked("--time", seconds, looking), _checked("--timeout", seconds, timeout) if timeout else None
    if stdin is not None and not os.path.isfile(stdin):
        raise RequestError(f"--stdin {stdin!r}: there is no such file in {os.getcwd()}")
    given, note = (stdin, "") if stdin is not None else _piped()
    if note:
        click.echo(note, err=True)
    with tempfile.TemporaryDirectory(prefix="aorta-try-") as folder:
        look = _Look(command, Path(folder), *limits, given)
        look.run()
        click.echo("\n".join(look.lines()))
        if not look.trials:
            raise SystemExit(143 if look.is_terminated else 1)
        arguments, lines = _measurement(look)
    click.echo("\n".join(("", *lines)))
    if look.is_terminated:
        raise SystemExit(143)
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty() and click.confirm("Run it?")):
        return
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with _ended(subprocess.Popen([sys.executable, "-m", "pytest", *arguments])) as pytest:
        while pytest.poll() is None:
            with contextlib.suppress(KeyboardInterrupt):  # pytest has got it as well, and says what it has
                pytest.wait()
    # Trials that fail are what it looks for.
    raise SystemExit({0: 0, 1: 0, 2: 130}.get(pytest.returncode, 1))


@contextlib.contextmanager
def _ended(pytest: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The status of a pytest that ends with this process, and passes its SIGTERM on."""
    try:
        yield pytest
    finally:
        if pytest.poll() is None:
            pytest.terminate()  # it ends in order
        pytest.wait()


def _piped() -> tuple[str | None, str]:
    """The file that holds piped standard input (``None``: nothing was piped), and a note to print.

    A pipe can be read once, so its content is kept in the user's cache folder, also for the proposed line.
    """
    try:
        mode = os.fstat(0).st_mode
        if stat.S_ISREG(mode):
            path = os.readlink("/proc/self/fd/0")
            return (path, "") if os.path.isfile(path) else (None, "")
        if not stat.S_ISFIFO(mode):
            return None, ""
        chunks: list[bytes] = []
        while select.select([0], [], [], _PIPE if chunks else 0)[0]:
            if not (chunk := os.read(0, 2**16)):
                break
            chunks.append(chunk)
        else:
            if chunks:
                return None, (
                    f"Standard input is not passed on: it is a pipe that has not ended within {_PIPE:g} s. "
                    "--stdin FILE gives each run a file."
                )
    except OSError:
        return None, ""
    if not (content := b"".join(chunks)):
        return None, ""
    kept = cache_folder() / "stdin" / hashlib.sha256(content).hexdigest()[:16]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return str(kept), ""


def _checked(name: str, reader: Reader, text: str) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise RequestError(f"{name}: {text!r} is not valid; expected {error}") from None


class _Look:
    """Runs of a command under pytest: one as given, then more with the options that the first one suggests.

    A run hangs when it exceeds the user's timeout, or takes many times as long as a run that ended by itself. Before
    any run has ended, only its activity is reported.

    Attributes:
        trials: runs that came to their work.
        bad: trials that failed, or printed a NaN although they passed.
        lost: runs that did not come to their work.
        signs, parts: as in ``_CANDIDATES_OF``; ``parts`` once all runs have ended.
        options: for all runs but the first.
        timeout: the user's, in seconds.
        is_terminated: whether this process received SIGTERM.
    """

    def __init__(
        self, command: str, folder: Path, looking: float, timeout: float | None, stdin: str | None = None
    ) -> None:
        self.command, self.timeout, self.launcher = command, timeout, launcher_in(command)
        self.stdin = stdin and os.path.abspath(stdin)
        self.options: dict[str, str] = {}
        self.trials: list[RecordedTrial] = []
        self.bad: list[RecordedTrial] = []
        self.lost: list[RecordedTrial] = []
        self.signs: set[str] = set()
        self.parts: set[str] = set()
        self.is_terminated = False
        #: Seconds that runs were looked at.
        self._spent = 0.0
        self._folder, self._looking = folder, looking
        self._is_over = self._is_interrupted = False
        #: Activity of an unfinished run, how long it was observed, and whether it waits.
        self._doing, self._waited, self._is_stuck = "", 0.0, False
        #: Runs that a deadline has ended while they computed, by their files.
        self._computed: set[str] = set()
        self._said = ""
        #: Files in the working directory that appeared or changed during the first run.
        self.written: list[str] = []

    def run(self) -> None:
        def terminate(number: int, frame: object) -> None:
            self.is_terminated = True
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, terminate)
        try:
            self._run()
        except KeyboardInterrupt:  # before, between or after what pytest does, which has one of its own
            self._is_interrupted = True
        self._show("")
        self._judge()

    def _run(self) -> None:
        before = _files(Path.cwd())
        self._pytest("first", {"timeout": f"{self.timeout:g}"} if self.timeout else {}, most=1)
        self.written = sorted(name for name, state in _files(Path.cwd()).items() if before.get(name) != state)
        if self._is_stuck and not self._is_interrupted:
            # Does another one end? Only then does this one hang.
            self._spent = 0.0
            self._pytest("others", {"timeout": f"{_TIMEOUT}s"}, most=_OTHERS)
        self._is_over = self._is_interrupted
        guessed = self._guessed()
        self.options = {**self.options_of_trials(), **guessed}
        self._read_again(guessed)
        if not self._is_over and (self.seconds or (self.timeout and self.trials) or self.lost):
            if self._doing:
                self._spent = 0.0
            self._pytest("more", self.options, most=_MOST)
            self.options |= {**self._guessed(), **self.options}

    def _judge(self) -> None:
        """Judge the runs, once all have ended."""
        if self.timeout is None:
            cut = [each for each in self.trials if each.facts.outcome == "timeout" and not self._hangs(each)]
            self.trials = [trial for trial in self.trials if trial not in cut]
            self.bad = [trial for trial in self.bad if trial not in cut]
        could_not = [trial for trial in self.trials if not_able(trial.record, self._folder)]
        if not any(facts.is_counted for facts in judged_together([trial.facts for trial in self.trials])):
            could_not = self.trials
        if len(could_not) == len(self.trials):  # the same in every run: it cannot run here, or like this
            self.lost, self.trials, self.bad = [*could_not, *self.lost], [], []
        for trial in self.bad:
            said = {"nan", "oom"}.intersection(trial.facts.detected)
            crashed = (trial.record.get("failure") or {}).get("signal")
            is_hang = trial.facts.outcome == "timeout"
            self.signs |= {"hang"} if is_hang else {"crash"} if crashed else said or {"wrong"}
        records = [trial.record for trial in self.trials]
        if self.launcher or any(record.get("ranks") for record in records):
            self.parts.add("ranks")
        scripts = [file for file in files_in(command_words(self.command)) if file.endswith(".py")]
        imports = (line for file in scripts for line in _IMPORTS.findall(Path(file).read_text(errors="replace")))
        imported = set(re.findall(r"\w+", " ".join(imports)))
        has_torch = imported & _TORCH or any((record["env"].get("end") or {}).get("torch") for record in records)
        if has_torch:
            self.parts.add("torch")
        if has_torch or imported & _NATIVE or not scripts or "crash" in self.signs:
            self.parts.add("native")
        vendor, used = find_devices().vendor, [_output(record).get("devices") for record in records]
        self.parts |= {"gpu", vendor} if vendor != "none" and (any(used) or None in used) else {"cpu"}

    def _hangs(self, trial: RecordedTrial) -> bool:
        """Whether the deadline of a killed run was long enough, by comparison with runs that ended by themselves."""
        limit = trial.record["request"]["limits"]["timeout"]
        return bool(self.seconds) and limit is not None and limit >= _TIMES_LONGER * min(self.seconds)

    def _pytest(self, name: str, options: Mapping[str, str], most: int) -> None:
        results, before = self._folder / name, [*self.trials, *self.lost]
        given = {"command": self.command, "trials": str(most), "mitigations": "none", **options}
        words = [*_words(given), *self.stdin_words, f"--aorta-results-dir={results}", "-p", "no:cacheprovider"]
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            started = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        with _ended(started) as pytest:
            try:
                self._watch(pytest, name, results, before)
            except KeyboardInterrupt:  # which pytest has got as well
                self._is_over = self._is_interrupted = True
                self._waited = self._spent
            self._read(results, before)  # before what was running is ended
            ended = pytest.poll()
        if not (self.trials or self.lost or self._doing or self._is_interrupted):
            tail = read_tail(log, 4000).strip()
            self._said = f"It did not run: pytest ended with exit code {ended}" + (f":\n{tail}" if tail else ".")

    @property
    def stdin_words(self) -> list[str]:
        return [f"--aorta-config=stdin={self.stdin}"] if self.stdin else []

    def _watch(
        self, pytest: subprocess.Popen[bytes], name: str, results: Path, before: Sequence[RecordedTrial]
    ) -> None:
        activity, asked, written, wrote_at = Activity(pytest.pid), 0.0, 0, 0.0
        started, begun, spent = time.monotonic(), False, self._spent
        while pytest.poll() is None and not self._is_over:
            timed_out = self._read(results, before)
            now, failed, ended = time.monotonic(), len(self.bad), len(self.trials) + len(self.lost)
            if not begun and any(results.glob("*/trial_*")):  # the start of pytest, which may take long, does not count
                begun, started = True, now
            self._spent = spent + (now - started if begun else 0.0)
            if not begun and now - started > _FIRST * self._looking:
                self._give_up(activity, now - started, has_begun=False)
                return
            self._show(f"{self._spent:.0f}s: {ended} ended, {failed} failed (Ctrl-C: enough)")
            if now - asked > _LOOK:
                activity.look()
                asked = now
            for file in timed_out:
                if self.timeout is None and activity.computes(self.deadline):
                    self._computed.add(file)
            if name == "first":
                size = sum(file.stat().st_size for file in results.glob("*/trial_0/std*.log"))
                if size != written:
                    written, wrote_at = size, now
                # A run that has printed nothing yet has the whole time, and one that goes on printing has more.
                goes_on = bool(written) and now - wrote_at < self._looking / 3
                if self._spent > self._looking * (_FIRST if goes_on else 1):
                    self._give_up(activity, self._spent, goes_on=goes_on)
                    return
            elif name == "others":
                self._is_over = bool(self.seconds or self.lost) or self._spent > max(_TIMEOUT, self._looking)
            else:
                self._is_over = ended >= (_ENOUGH if failed else _MOST) or self._spent > self._looking
            time.sleep(0.1)

    def _give_up(self, activity: Activity, waited: float, *, has_begun: bool = True, goes_on: bool = False) -> None:
        """Stop waiting for the first run."""
        if self._doing:
            return
        self._waited = waited
        if not has_begun:
            load, cores = os.getloadavg()[0], os.cpu_count() or 1
            self._doing = f"pytest has not started it yet (load {load:.0f} on {counted(cores, 'core')})"
            return
        self._doing, self._is_stuck = activity.now(min(waited / 2, _WINDOW))
        if goes_on:
            lines: list[str] = []
            for log in sorted(self._folder.glob("first/*/trial_0/std*.log")):
                lines += [line for line in map(plain_line, re.split(r"[\r\n]+", read_tail(log, 4000))) if line.strip()]
            self._doing, self._is_stuck = f"it goes on printing, such as {_short(lines[-1] if lines else '')!r}", False

    def _read(self, results: Path, before: Sequence[RecordedTrial]) -> list[str]:
        """Read runs that have ended; return the files of new ones that hit the deadline."""
        known = [*self.trials, *self.lost]
        if len(list(results.glob("*/trial_*.json"))) <= len(known) - len(before):
            return []
        ended = [each for each in (*before, *Results(results)) if each.facts.outcome != "interrupted"]
        # A file that is missing in some runs only is how these fail.
        self.trials = [each for each in ended if each.facts.is_counted or not_able(each.record, self._folder)]
        self.lost = [trial for trial in ended if trial not in self.trials]
        self.bad = [each for each in self.trials if each.record["exit_status"] != "ok" or "nan" in each.facts.detected]
        new = [each for each in ended if each not in known and each.facts.outcome == "timeout"]
        return [each.file for each in new]

    def _show(self, text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def _guessed(self) -> dict[str, str]:
        """The pytest option that reads steps from the output of the trials."""
        return guessed_options(self._lines("*"))

    def _lines(self, trials: str) -> Iterator[str]:
        for log in sorted(self._folder.glob(f"{trials}/*/trial_*/std*.log")):
            with log.open(errors="replace") as file:
                yield from map(plain_line, re.split(r"[\r\n]+", file.read(_LOOKED_AT)))

    def _read_again(self, guessed: Mapping[str, str]) -> None:
        """Read what the first run says in the way that was guessed from it, as later runs are read."""
        if len(self.trials) == 1 and guessed:
            rules: dict[str, Any] = {name.replace("-", "_"): (text,) for name, text in guessed.items()}
            found = OutputFindings(OutputRules(**rules))
            for line in self._lines("first"):
                found.take(line, 0.0)
            result = self.trials[0].record["result"]
            result["metrics"] = {**found.metrics, **result.get("metrics", {})}
            result["executed_iterations"] = found.step

    @property
    def seconds(self) -> list[float]:
        """Durations of trials that ended by themselves."""
        return [each.facts.wall_sec or 0 for each in self.trials if each.facts.outcome != "timeout"]

    @property
    def deadline(self) -> float:
        """Time limit of a trial, in seconds."""
        if self.timeout is not None:
            return self.timeout
        longest = _TIMES_LONGER * max(self.seconds) if self.seconds else _TIMEOUT
        return math.ceil(max(longest, _SHORTEST_TIMEOUT * _crowd()) / 5) * 5

    def options_of_trials(self) -> dict[str, str]:
        """Deadline and working directory, as options of pytest."""
        cwd = {"cwd": "copy"} if self.written and _is_small(Path.cwd()) else {}
        return {"timeout": duration_text(self.deadline), **cwd}

    def lines(self) -> Iterator[str]:
        """The report, headline first."""
        why = ""
        if self.lost:
            record = self.lost[0].record
            why = not_able(record, self._folder) or one_line((record.get("failure") or {}).get("message") or "")
        if not self.trials:
            if self.lost:
                yield f"It did not run: {why}"
            elif self._doing or self._is_interrupted:
                how = "Stopped" if self._is_interrupted else "Still running"
                doing = f": {self._doing}" if self._doing else ""
                within = f"within {duration_text(round(self._waited))}" if self._waited >= 1 else "yet"
                yield f"{how}; no run has ended {within}{doing}."
                yield from self._next_steps()
            else:
                yield self._said
            return
        count, bad = len(self.trials), len(self.bad)
        verbs = " or ".join(self._verb(sign) for sign in _VERBS if sign in self.signs)
        places = {each.facts.failed_rank for each in self.bad}
        where = "" if None in places or len(places) != 1 else f", by rank {places.pop()}"
        if not bad and (outcomes := self.outcomes):
            read = len(self.ends[outcomes[0]])
            unread = f", which was read in {read} of them" if read < count else ""
            yield f"It did not fail in {counted(count, 'run')}, but has {outcomes[1]} ({outcomes[0]}{unread})."
        elif not bad:
            processes = group_by_start(trial.facts for trial in self.trials)
            bound = bound_text(rate_below(count), start_rate_below(processes), len(processes))
            yield f"It did not fail in {counted(count, 'run')}; its failure rate is {bound}."
        elif bad < count:
            yield f"It {verbs} sometimes: in {bad} of {counted(count, 'run')}{where}."
        else:
            yield f"It {verbs} in {'its only run' if count == 1 else f'all of {count} runs'}{where}."
        none = f"none has ended by itself within {self.deadline:g} s (--timeout 1m waits longer)"
        rows = [("runs", f"{_range(self.seconds, 's')} each" if self.seconds else none)]
        last = self.trials[-1].record
        ranks, devices = len(last.get("ranks") or ()), _output(last).get("devices")
        starts = [self.launcher or "no launcher", *([f"{ranks} ranks"] if ranks else [])]
        starts += ["torch"] if "torch" in self.parts else []
        unused = "no GPU" if "cpu" in self.parts else f"GPUs of {'AMD' if 'amd' in self.parts else 'NVIDIA'}"
        rows.append(("starts", ", ".join([*starts, f"used {', '.join(map(str, devices))}" if devices else unused])))
        steps = [each for trial in self.trials if (each := trial.record["result"].get("executed_iterations"))]
        medians = [trial.facts.steps.median_ms for trial in self.trials if trial.facts.steps]
        if steps:
            each = f"; {_range(medians, 'ms')} each (median of a run)" if medians else ""
            rows.append(("steps", f"the last is {_range(steps)}{each}"))
        elif not {"metric", "metrics-from"}.intersection(self.options):
            rows.append(("steps", "no line was found that counts them (--aorta-metric would name it)"))
        rows.append(("metrics", "; ".join(f"{name} ends at {_range(values)}" for name, values in self.ends.items())))
        rows += [("stdin", f"each run reads {self.stdin}")] if self.stdin else []
        if self.written:
            shared = "a run may find what another has left (see --aorta-cwd)"
            own = "so that no run finds what another has left, each gets a copy of this folder"
            names = ", ".join(first_names(self.written, 4))
            rows.append(("files", f"writes {names}; {own if 'cwd' in self.options else shared}"))
        ways = Counter(trial.facts.signature.text for trial in self.trials if trial.facts.signature)
        for text, times in ways.most_common(4):
            if text.startswith("exit code"):  # what a program says as it ends is in the message alone
                same = (it.record for it in self.trials if it.facts.signature and it.facts.signature.text == text)
                text = _short(next(same)["failure"]["message"])
            rows.append(("fails", f"{times}x {text}"))
        for name, times in Counter(name for trial in self.trials for name in trial.facts.detected).items():
            said = next(_output(each.record)["detected"][name] for each in self.trials if name in each.facts.detected)
            rows.append(("output", f"says {name} in {times} of {count} runs, such as {_short(said['first'])!r}"))
        rows += [("lost", f"{len(self.lost)}x {why}")] if self.lost else []
        for name, text in rows:
            if text:
                yield f"  {name:<8} {one_line(text)}"

    def _verb(self, sign: str) -> str:
        hung = [each.file for each in self.bad if each.facts.outcome == "timeout"]
        if sign == "hang" and self._computed.issuperset(hung):  # slow, or in circles: who knows
            return f"is not done within {self.deadline:g} s, while it computes,"
        return _VERBS[sign]

    def _next_steps(self) -> Iterator[str]:
        again = "pytest-aorta try"
        yield ""
        yield f"To look longer:          {again} --time {duration_text(5 * self._looking)} -- {self.command}"
        if self._is_stuck:
            yield f"If that is a hang:       {again} --timeout {duration_text(_TIMEOUT)} -- {self.command}"

    @property
    def ends(self) -> dict[str, list[float]]:
        """The last values of each metric, by its name."""
        ends: dict[str, list[float]] = {}
        for trial in self.trials:
            for name, value in trial.record["result"].get("metrics", {}).items():
                if isinstance(value, int | float) and name not in ("returncode", "seed", "step_ms", "step_sec"):
                    ends.setdefault(name, []).append(value)
        return ends

    @property
    def outcomes(self) -> tuple[str, str] | None:
        """A metric that ends in two groups of values: its name, and ``two outcomes: 0.841 in 9 runs, 0.859 in 6``."""
        for name, values in self.ends.items():
            if (groups := two_groups(values)) is not None:
                (low, number), (high, others) = groups
                digits = next((each for each in (3, 4, 6) if f"{low:.{each}g}" != f"{high:.{each}g}"), 15)
                parts = f"{low:.{digits}g} in {counted(number, 'run')}, {high:.{digits}g} in {others}"
                return name, f"two outcomes: {parts}"
        return None


def two_groups(values: Sequence[float]) -> tuple[tuple[float, int], tuple[float, int]] | None:
    """The medians and sizes of two clusters of numbers; ``None`` without two clear clusters.

    Each cluster has at least two numbers, and the gap between them is more than ten times as wide as either.
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if len(ordered) < _FEWEST_IN_GROUPS:
        return None
    gap, place = max((high - low, place) for place, (low, high) in enumerate(itertools.pairwise(ordered), 1))
    low, high = ordered[:place], ordered[place:]
    widest = max(low[-1] - low[0], high[-1] - high[0])
    if min(len(low), len(high)) < 2 or gap <= 10 * widest:
        return None
    return (statistics.median(low), len(low)), (statistics.median(high), len(high))


#: The last line of a usage error, as argparse, optparse and click write it.
_USAGE_ERROR = re.compile(r"^(?:\S+: error|Error): (?P<why>.+)$", re.MULTILINE)


#: Files of a folder that are looked at.
_MOST_FILES = 2000


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of each file in a folder, by path, without hidden files and caches of Python."""
    files: dict[str, tuple[int, int]] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__", "results"))]
        for name in names:
            path = Path(root, name)
            with contextlib.suppress(OSError):
                if not name.startswith("."):
                    state = path.stat()
                    files[str(path.relative_to(folder))] = state.st_size, state.st_mtime_ns
            if len(files) >= _MOST_FILES:
                return files
    return files


def not_able(record: Mapping[str, Any], folder: Path) -> str:
    """Why a run could not start its work: a missing file or module, or a wrong command line; else empty.

    ``folder``: an ancestor of the run's logs.
    """
    failure = record.get("failure") or {}
    if record["exit_status"] == "ok" or record["result"].get("executed_iterations"):
        return ""
    kind, message = failure.get("type") or "", one_line(failure.get("message") or "")
    if kind in _MISSING:
        return f"{kind}: {message}"
    if kind == "EOFError" and "EOF when reading a line" in message:
        return "it reads standard input, which is empty (--stdin FILE gives each run one)"
    if failure.get("exit_code"):
        for log in folder.glob(f"*/*/trial_{record['trial_index']}/stderr.log"):
            said = read_tail(log, 4000)
            errors = _USAGE_ERROR.findall(said)
            if errors and re.search(r"^usage: ", said, re.MULTILINE | re.IGNORECASE):
                return f"its command line is wrong: {one_line(errors[-1])}"
    return ""


def _measurement(look: _Look) -> tuple[list[str], list[str]]:
    """Arguments for the pytest that tests fixes of a command, and lines that show and explain them."""
    # torchrun and what is made of it set it themselves.
    ambient = {**({"OMP_NUM_THREADS": "1"} if look.launcher in _OF_TORCHRUN else {}), **os.environ}
    env_of = {each.name: each.env for each in BUILTIN_MITIGATIONS}
    candidates = [
        each
        for each in _CANDIDATES_OF
        if look.parts.issuperset(each.parts.split())
        and (not each.signs or look.signs.intersection(each.signs.split()))
        # Else it changes nothing.
        and any(ambient.get(name) != value for name, value in env_of[each.name].items() if name != "MKL_NUM_THREADS")
    ][: _CANDIDATES_ON_GPU if "gpu" in look.parts else _CANDIDATES]
    outcomes = None if look.bad else look.outcomes
    if outcomes:
        candidates = []
    cells, trials = len(candidates) + 1, _FEWEST_TRIALS
    if look.bad:
        rate = wilson(len(look.bad), len(look.trials)).low
        enough = (
            number
            for number in range(_FEWEST_TRIALS, _MOST_TRIALS, 5)
            # A sequential test takes about twice the trials of one at the end.
            if (fault := smallest_fault(number // 2, max(1, cells - 1))) is not None and fault <= rate
        )
        trials = next(enough, _MOST_TRIALS)
    hung = len(look.trials) - len(look.seconds)
    each_takes = (sum(look.seconds) + hung * look.deadline) / len(look.trials)
    limit = max(_TIME, _ROUNDS * cells * each_takes)
    options = {**look.options, **look.options_of_trials()}
    if "nan" in look.signs:
        options["fail-on"] = "@nan"
    options |= _slots(look, trials * cells * each_takes / _TIME)
    goal = "first-fix" if look.bad else "speed"
    options |= {"trials": str(trials), "stop": f"{goal},{duration_text(math.ceil(limit / 60) * 60)}"}
    if outcomes:  # which trial computes something else, and where first
        options = {**{name: value for name, value in options.items() if name != "stop"}, "collect": "divergence"}
    arguments = _words({"command": look.command, **options, "mitigations": "none"}) + look.stdin_words
    arguments += [f"--aorta-mitigations={each.name}" for each in candidates]

    what = "measures what may fix it" if look.bad else "looks longer, and compares speeds"
    if outcomes:
        what = "finds the first step that differs"
    lines = [f"This line {what}:" if candidates or outcomes else "This line looks longer:"]
    shown = []
    for name, _, value in (word.partition("=") for word in arguments):
        # For a shell, readable also where it has quotes; pytest takes a word that begins with "@" for a file with
        # arguments.
        is_plain = "'" in value and not set(value) & set('"$`\\!')
        quoted = f'"{value}"' if is_plain else shlex.quote(value)
        shown.append(f"{name}{'=' if value[0] in '@-' else ' '}{quoted}")
    lines.append("\n    pytest " + " \\\n        ".join(shown) + "\n")
    width = max((len(each.name) for each in candidates), default=0)
    lines += [f"  {each.name:<{width}}  {each.why}" for each in candidates]
    if not candidates and not outcomes:
        lines.append("  No mitigation that comes with pytest-aorta fits. Your own: --aorta-mitigations NAME=VALUE")
    longest = duration_text(math.ceil(min(limit, trials * cells * each_takes) / 60) * 60)
    end = "; the first fix ends it" if look.bad else "" if outcomes else "; a verdict ends it"
    lines.append(f"  At most {trials * cells:,} trials in {counted(cells, 'cell')}, {longest}{end}.")
    if look.bad and len(look.bad) < FREQUENT * len(look.trials):
        own = shlex.join(_words({**look.options, **look.options_of_trials()}))
        lines.append("  It is rare. This line looks for a condition that makes it frequent:")
        lines.append(f"\n    pytest-aorta amplify {own} -- {look.command}\n")
    elif not look.bad and not outcomes:
        words = _words({"command": look.command, **look.options, **look.options_of_trials(), **UNTIL_IT_FAILS})
        lines.append(f"  If it fails rarely, this line runs it until it fails, for {LONGEST} at most:")
        lines.append(f"\n    pytest {shlex.join([*words, *look.stdin_words])}\n")
    return arguments, lines


def _slots(look: _Look, times_too_long: float) -> dict[str, str]:
    """Options for parallel trials, where a sequence takes too long and trials share nothing but the host."""
    if look.launcher or times_too_long < 1 or (look.written and "cwd" not in look.options):
        return {}
    if "gpu" in look.parts:
        gpus = find_devices().visible
        used = max(len(_output(trial.record).get("devices") or gpus) for trial in look.trials)
        number = len(gpus) // max(1, used)
        return {"slots": str(number), "devices": ",".join(map(str, gpus))} if used == 1 < number else {}
    number = min((os.cpu_count() or 1) // _CORES, math.ceil(times_too_long))
    return {"slots": str(number)} if number > 1 else {}


def _crowd() -> float:
    """How many times slower a process may run because of the machine's load."""
    return min(_FIRST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _words(options: Mapping[str, str]) -> list[str]:
    return [f"--aorta-{name}={value}" for name, value in options.items()]


def _short(text: str) -> str:
    return textwrap.shorten(text, 100, placeholder="...")


def _output(record: Mapping[str, Any]) -> dict[str, Any]:
    return record["result"].get("output") or {}


def _range(values: Sequence[float], unit: str = "") -> str:
    low, high = (f"{value:.3g}" for value in (min(values), max(values)))
    return " ".join(filter(None, (low if low == high else f"{low} to {high}", unit)))


def _is_small(folder: Path) -> bool:
    """Whether a folder can be copied for each trial."""
    files = size = 0
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git" and not os.path.exists(f"{path}/{name}/pyvenv.cfg")]
        for name in names:
            files, size = files + 1, size + os.lstat(os.path.join(path, name)).st_size
            if files > _MOST_FILES or size > _MOST_BYTES:
                return False
    return True
