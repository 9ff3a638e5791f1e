"""``pytest-aorta try``: what a command does, how it fails, and the line of pytest that measures what may fix it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
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
import psutil

from pytest_aorta.common.texts import counted, duration_text, first_names, one_line, read_tail
from pytest_aorta.registry import BUILTIN_MITIGATIONS
from pytest_aorta.runtime.resources.devices import find_devices
from pytest_aorta.settings import Reader, RequestError, seconds, shown_command
from pytest_aorta.triage.columns import bound_text
from pytest_aorta.triage.draws import start_rate_below, starts_of
from pytest_aorta.triage.rates import rate_below, smallest_fault, wilson
from pytest_aorta.triage.reading import RecordedTrial, Results
from pytest_aorta.trials.command_line import checked_command, files_in, launcher_in, program_not_found, words_of
from pytest_aorta.trials.output import guessed_options, plain_line

#: Runs that are enough: if some have failed, and if none has.
_ENOUGH, _MOST = 4, 20

#: How many times as long as for all runs is waited for the first one.
_FIRST = 5

#: Seconds after which a first run hangs that says nothing and uses less than this share of a core.
_SILENCE, _IDLE = 5.0, 0.05

#: A run that takes so many times as long as the longest one that has ended by itself hangs; and seconds at least, or
#: where none has.
_TIMES_LONGER, _SHORTEST_TIMEOUT, _TIMEOUT = 5, 5, 10

#: Files in the working directory, and their bytes, up to which each trial gets a copy of it.
_MOST_FILES, _MOST_BYTES = 2000, 50 * 2**20

#: Bytes of the output that are looked at for steps.
_LOOKED_AT = 2**20

#: Trials of a cell, and candidates on a CPU and on GPUs.
_FEWEST_TRIALS, _MOST_TRIALS, _CANDIDATES, _CANDIDATES_ON_GPU = 20, 300, 3, 5

#: Seconds that the measurement has at least, and trials of each cell that it has time for.
_TIME, _ROUNDS = 240.0, 10

#: Physical cores for each trial, where several run at a time.
_CORES = 4

#: What scripts import, and of that what brings torch, and other code in C that computes.
_IMPORTS = re.compile(r"^\s*(?:import|from)\s.+", re.MULTILINE)
_TORCH = {"torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "torchvision"}
_NATIVE = {"numpy", "scipy", "pandas", "jax", "tensorflow", "cupy", "ctypes", "cffi"}

_OF_TORCHRUN = ("torchrun", "accelerate", "torch.distributed.run", "torch.distributed.launch")

#: How a command fails, by what was seen.
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
@click.option("--yes", is_flag=True, help="Run the line that is found, without being asked.")
@click.option(
    "--time", "looking", default="1m", metavar="SEC", help="How long to look (default 1m), once a run has ended."
)
@click.option("--timeout", metavar="SEC", help="A run that takes longer hangs (default: from the first runs).")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT]...")
def try_(words: tuple[str, ...], yes: bool, looking: str, timeout: str | None) -> None:
    """pytest-aorta try -- python train.py --steps 40. Ctrl-C ends the looking, and keeps what was seen."""
    command = words[0] if len(words) == 1 and " " in words[0] else shlex.join(words)
    _checked("the command", checked_command, command)
    if problem := program_not_found(words_of(command), os.environ.get("PATH", os.defpath)):
        raise RequestError(f"the command {shown_command(command)}: {problem}")
    limits = _checked("--time", seconds, looking), _checked("--timeout", seconds, timeout) if timeout else None
    with tempfile.TemporaryDirectory(prefix="aorta-try-") as folder:
        found = _Look(command, Path(folder), *limits)
        found.run()
        click.echo("\n".join(found.lines()))
        if not found.trials:
            raise SystemExit(1)
        arguments, lines = _measurement(found)
    click.echo("\n".join(("", *lines)))
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty() and click.confirm("Run it?")):
        return
    sys.stdout.flush()
    with _ended(subprocess.Popen([sys.executable, "-m", "pytest", *arguments])) as pytest:
        while pytest.poll() is None:
            with contextlib.suppress(KeyboardInterrupt):  # pytest has got it as well, and says what it has
                pytest.wait()
    # Trials that fail are what it looks for.
    raise SystemExit({0: 0, 1: 0, 2: 130}.get(pytest.returncode, 1))


@contextlib.contextmanager
def _ended(pytest: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Of a pytest that does not outlive this process, which may be told to end as well."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield pytest
    finally:
        if pytest.poll() is None:
            pytest.terminate()  # it ends in order
        pytest.wait()


def _checked(name: str, reader: Reader, text: str) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise RequestError(f"{name}: {text!r} is not valid; expected {error}") from None


class _Look:
    """Runs of a command, by pytest: one as it is, then more of them with what the first one has shown.

    Attributes:
        trials, bad, lost: those that say something about it, of these those that have failed, or passed in spite of a
            NaN that they have printed; and those that have not come to their work.
        signs, parts: as of ``_CANDIDATES_OF``; ``parts`` once all runs have ended.
        options: with which all but the first are run.
        timeout: that of the user, in seconds.
    """

    def __init__(self, command: str, folder: Path, looking: float, timeout: float | None) -> None:
        self.command, self.timeout, self.launcher = command, timeout, launcher_in(command)
        self.options: dict[str, str] = {}
        self.trials: list[RecordedTrial] = []
        self.bad: list[RecordedTrial] = []
        self.lost: list[RecordedTrial] = []
        self.signs: set[str] = set()
        self.parts: set[str] = set()
        self._folder, self._looking, self._began = folder, looking, time.monotonic()
        self._is_over = self._is_idle = False
        self._said = ""

    def run(self) -> None:
        self._pytest("first", {"timeout": f"{self.timeout:g}"} if self.timeout else {}, most=1)
        self.options = {**self.options_of_trials(), **self._guessed()}
        if not self._is_over and (self._is_idle or self.trials):
            self._pytest("more", self.options, most=_MOST)
            self.options |= {**self._guessed(), **self.options}
        self._show("")
        for trial in self.bad:
            said = {"nan", "oom"}.intersection(trial.facts.detected)
            crashed = (trial.record.get("failure") or {}).get("signal")
            is_hang = trial.facts.outcome == "timeout"
            self.signs |= {"hang"} if is_hang else {"crash"} if crashed else said or {"wrong"}
        records = [trial.record for trial in self.trials]
        if self.launcher or any(record.get("ranks") for record in records):
            self.parts.add("ranks")
        scripts = [file for file in files_in(words_of(self.command)) if file.endswith(".py")]
        imports = (line for file in scripts for line in _IMPORTS.findall(Path(file).read_text(errors="replace")))
        imported = set(re.findall(r"\w+", " ".join(imports)))
        has_torch = imported & _TORCH or any((record["env"].get("end") or {}).get("torch") for record in records)
        if has_torch:
            self.parts.add("torch")
        if has_torch or imported & _NATIVE or not scripts or "crash" in self.signs:
            self.parts.add("native")
        vendor, used = find_devices().vendor, [_output(record).get("devices") for record in records]
        self.parts |= {"gpu", vendor} if vendor != "none" and (any(used) or None in used) else {"cpu"}

    def _pytest(self, name: str, options: Mapping[str, str], most: int) -> None:
        results, before = self._folder / name, [*self.trials, *self.lost]
        given = {"command": self.command, "trials": str(most), "mitigations": "none", **options}
        words = [*_words(given), f"--aorta-results-dir={results}", "-p", "no:cacheprovider"]
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            started = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        with _ended(started) as pytest:
            try:
                self._watch(pytest, results, before, is_first=most == 1)
            except KeyboardInterrupt:  # which pytest has got as well
                self._is_over = True
            self._read(results, before)  # before what was running is ended
        if not (self.trials or self.lost):
            self._said = read_tail(log, 4000).strip()
            if any(results.glob("*/trial_0/std*.log")):
                self._said = "The first run has not ended: give it less to do, or more time (--time 10m)."

    def _watch(
        self, pytest: subprocess.Popen[bytes], results: Path, before: Sequence[RecordedTrial], is_first: bool
    ) -> None:
        process, since, written, used = psutil.Process(pytest.pid), time.monotonic(), 0, 0.0
        while pytest.poll() is None and not self._is_over:
            self._read(results, before)
            now, failed, ended = time.monotonic(), len(self.bad), len(self.trials) + len(self.lost)
            looking = self._looking if ended or self._is_idle else _FIRST * self._looking
            self._is_over = ended >= (_ENOUGH if failed else _MOST) or now - self._began > looking
            self._show(f"{now - self._began:.0f}s: {ended} ended, {failed} failed (Ctrl-C: enough)")
            if is_first and not self.timeout:  # a trial that neither writes nor computes does nothing any more
                logs, computed = [*results.glob("*/trial_0/std*.log")], 0.0
                size = sum(file.stat().st_size for file in logs)
                for child in process.children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        computed += sum(child.cpu_times()[:2])
                if size != written or computed - used > _IDLE * _SILENCE:
                    since, written, used = now, size, computed
                if now - since > _SILENCE and logs:
                    self._is_idle = True
                    return
            time.sleep(0.1)

    def _read(self, results: Path, before: Sequence[RecordedTrial]) -> None:
        if len(list(results.glob("*/trial_*.json"))) <= len(self.trials) + len(self.lost) - len(before):
            return
        ended = [*before, *Results(results)]
        self.trials = [trial for trial in ended if trial.facts.is_counted]
        self.lost = [trial for trial in ended if not trial.facts.is_counted]
        self.bad = [trial for trial in self.trials if trial.facts.is_failure or "nan" in trial.facts.detected]

    def _show(self, text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def _guessed(self) -> dict[str, str]:
        """How the steps of the trials can be read, as an option of pytest."""
        lines: list[str] = []
        for log in sorted(self._folder.glob("*/*/trial_*/std*.log")):
            with log.open(errors="replace") as file:
                lines += map(plain_line, re.split(r"[\r\n]+", file.read(_LOOKED_AT)))
        return guessed_options(lines)

    @property
    def seconds(self) -> list[float]:
        """How long the trials took that have ended by themselves."""
        return [each.facts.wall_sec or 0 for each in self.trials if each.facts.outcome != "timeout"]

    @property
    def deadline(self) -> float:
        """Of a trial, in seconds."""
        longest = _TIMES_LONGER * max(self.seconds) if self.seconds else _TIMEOUT
        return math.ceil((self.timeout or max(longest, _SHORTEST_TIMEOUT)) / 5) * 5

    def options_of_trials(self) -> dict[str, str]:
        """Deadline and working directory, as options of pytest."""
        cwd = {"cwd": "copy"} if self.written and _is_small(Path.cwd()) else {}
        return {"timeout": duration_text(self.deadline), **cwd}

    @property
    def written(self) -> list[str]:
        """Files in the working directory that Python processes of the command have written, sorted."""
        return sorted({name for trial in self.trials for name in _output(trial.record).get("written", ())})

    def lines(self) -> Iterator[str]:
        """What there is to say, with the first sentence first."""
        why = one_line((self.lost[0].record.get("failure") or {}).get("message") or "") if self.lost else ""
        if not self.trials:
            yield f"It did not run: {why}" if self.lost else self._said
            return
        count, bad = len(self.trials), len(self.bad)
        verbs = " or ".join(verb for sign, verb in _VERBS.items() if sign in self.signs)
        places = {each.facts.failed_rank for each in self.bad}
        where = "" if None in places or len(places) != 1 else f", by rank {places.pop()}"
        if not bad:
            processes = starts_of(trial.facts for trial in self.trials)
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
        ends: dict[str, list[float]] = {}
        for trial in self.trials:
            for name, value in trial.record["result"].get("metrics", {}).items():
                if isinstance(value, int | float) and name not in ("returncode", "seed"):
                    ends.setdefault(name, []).append(value)
        rows.append(("metrics", "; ".join(f"{name} ends at {_range(values)}" for name, values in ends.items())))
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


def _measurement(found: _Look) -> tuple[list[str], list[str]]:
    """The arguments of the pytest that measures what may fix a command; its line for a shell, and why it is so."""
    # torchrun and what is made of it set it themselves.
    ambient = {**({"OMP_NUM_THREADS": "1"} if found.launcher in _OF_TORCHRUN else {}), **os.environ}
    env_of = {each.name: each.env for each in BUILTIN_MITIGATIONS}
    candidates = [
        each
        for each in _CANDIDATES_OF
        if found.parts.issuperset(each.parts.split())
        and (not each.signs or found.signs.intersection(each.signs.split()))
        # Else it changes nothing.
        and any(ambient.get(name) != value for name, value in env_of[each.name].items() if name != "MKL_NUM_THREADS")
    ][: _CANDIDATES_ON_GPU if "gpu" in found.parts else _CANDIDATES]
    cells, trials = len(candidates) + 1, _FEWEST_TRIALS
    if found.bad:
        rate = wilson(len(found.bad), len(found.trials)).low
        enough = (
            number
            for number in range(_FEWEST_TRIALS, _MOST_TRIALS, 5)
            # A sequential test takes about twice the trials of one at the end.
            if (fault := smallest_fault(number // 2, max(1, cells - 1))) is not None and fault <= rate
        )
        trials = next(enough, _MOST_TRIALS)
    hung = len(found.trials) - len(found.seconds)
    each_takes = (sum(found.seconds) + hung * found.deadline) / len(found.trials)
    limit = max(_TIME, _ROUNDS * cells * each_takes)
    options = {**found.options, **found.options_of_trials()}
    if "nan" in found.signs:
        options["fail-on"] = "@nan"
    options |= _slots(found, trials * cells * each_takes / _TIME)
    goal = "first-fix" if found.bad else "speed"
    options |= {"trials": str(trials), "stop": f"{goal},{duration_text(math.ceil(limit / 60) * 60)}"}
    arguments = _words({"command": found.command, **options, "mitigations": "none"})
    arguments += [f"--aorta-mitigations={each.name}" for each in candidates]

    what = "measures what may fix it" if found.bad else "looks longer, and compares speeds"
    lines = [f"This line {what}:" if candidates else "This line looks longer:"]
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
    if not candidates:
        lines.append("  No mitigation that comes with pytest-aorta fits. Your own: --aorta-mitigations NAME=VALUE")
    longest = duration_text(math.ceil(min(limit, trials * cells * each_takes) / 60) * 60)
    end = "the first fix ends it" if found.bad else "a verdict ends it"
    lines.append(f"  At most {trials} trials of {counted(cells, 'cell')}, {longest}; {end}.")
    return arguments, lines


def _slots(found: _Look, times_too_long: float) -> dict[str, str]:
    """Trials side by side, where one after the other takes too long, and nothing is shared but the host."""
    if found.launcher or times_too_long < 1 or (found.written and "cwd" not in found.options):
        return {}
    if "gpu" in found.parts:
        gpus = find_devices().visible
        used = max(len(_output(trial.record).get("devices") or gpus) for trial in found.trials)
        number = len(gpus) // max(1, used)
        return {"slots": str(number), "devices": ",".join(map(str, gpus))} if used == 1 < number else {}
    number = min((os.cpu_count() or 1) // _CORES, math.ceil(times_too_long))
    return {"slots": str(number)} if number > 1 else {}


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
