"""A trial whose ranks are a command each, under the real ``torchrun``; their logs are read as they grow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from pytest_aorta.launch.child.command_outcome import command_result
from pytest_aorta.launch.child.command_process import Lines
from pytest_aorta.launch.child.rank_files import attempt_folder, find_file
from pytest_aorta.launch.child.script import RanksOutput, TorchrunStart, follow_torchrun
from pytest_aorta.launch.launch_mode import SCRIPT
from pytest_aorta.launch.trial_payload import PrepareArgument, TrialPayload
from pytest_aorta.probe.collect import StaticEnv, collect_env, collect_static, surroundings, variables_now
from pytest_aorta.probe.packages import package_list
from pytest_aorta.trials.command_line import COMMAND_TARGET, fill_in, placeholders_in, program_not_found, words_of
from pytest_aorta.trials.config import resolve_config
from pytest_aorta.trials.events import FailureData, ResultData, Send
from pytest_aorta.trials.loading import describe, load_class
from pytest_aorta.trials.output_rules import SEED, OutputFindings, OutputRules
from pytest_aorta.trials.place_variables import NAMES, TRIAL_SEED, note_tmp
from pytest_aorta.trials.returned import result_to_plain
from pytest_aorta.trials.steps import StepCounter, step_file

_CHUNK = 2**20

#: Least time between two events that say nothing new, in seconds.
_INTERVAL = 0.1

_static: StaticEnv | None = None


def prepare_command(argument: PrepareArgument) -> dict[str, Any]:
    """Describe the command, without running it."""
    global _static
    variables = variables_now()
    description = describe(load_class(COMMAND_TARGET), argument["overrides"], argument["steps"])
    source = description["source"]
    _static = collect_static(Path(source) if source else None)
    note_tmp()
    description["packages"] = package_list(_static.installed)
    return {**description, "launch_mode": SCRIPT, "surroundings": surroundings(_static, variables)}


def run_command_ranks(payload: TrialPayload, send: Send) -> None:
    """Start ``torchrun``, wait for it, report how the ranks ended and what they have printed."""
    send({"type": "env", "env": collect_env(_static, [*payload["watched"], *NAMES]).to_dict()})
    config = resolve_config(load_class(COMMAND_TARGET), payload["overrides"], payload["steps"]).value
    words = words_of(config.command)
    start = fill_in(words, os.environ)
    problem = program_not_found(start, os.environ.get("PATH", os.defpath))
    if problem is not None:
        failure: FailureData = {"phase": "setup", "kind": "exception", "type": "CommandNotFound", "message": problem}
        send({"type": "begin", "phase": "setup"})
        send({"type": "end", "phase": "setup", "sec": 0.0, "failure": failure})
        send({"type": "lived", "at": time.time()})
        return
    environ = dict(os.environ)
    if config.unbuffered:
        environ.setdefault("PYTHONUNBUFFERED", "1")
    restarts = int(payload["elastic"]["max_restarts"])
    torchrun = TorchrunStart(os.getcwd(), restarts, ["--no-python", *start], (), environ)
    rules = OutputRules(config.fail_on, config.pass_on, config.metric, config.fail_on_nonfinite)
    seed = int(os.environ[TRIAL_SEED]) if SEED in placeholders_in(words) else None
    follow_torchrun(payload, send, torchrun, CommandOutput(payload, send, rules, seed))


class CommandOutput(RanksOutput):
    """Finds in the logs of all ranks what their command says; steps and metrics are those of rank 0."""

    interval: ClassVar[float] = 0.005

    def __init__(self, payload: TrialPayload, send: Send, rules: OutputRules, seed: int | None) -> None:
        self._folder = Path(payload["folder"])
        self._ranks = range(payload["nproc"])
        self._send = send
        self._rules = rules
        self._seed = seed
        self._attempt = -1
        self._outputs: list[RankOutput] = []
        self._started = time.perf_counter()
        self._said: tuple[float, int | None] = (0.0, None)

    def look(self, attempt: int) -> None:
        """Read what is new, and report that something goes on."""
        if attempt != self._attempt:
            self._attempt = attempt
            for output in self._outputs:
                output.close()
            self._outputs = [RankOutput(self._folder, attempt, rank, self._rules) for rank in self._ranks]
        new = [output.read() for output in self._outputs]
        found, now = self._outputs[0].found, time.monotonic()
        sent_at, sent = self._said
        if now - sent_at < _INTERVAL:
            return
        if found.step is not None and found.step != sent:
            self._said = now, found.step
            self._send({"type": "progress", "step": found.step, "total": found.total})
        elif any(new) and not self._rules.has_steps:
            self._said = now, sent
            self._send({"type": "alive"})

    def result(self, attempt: int, code: int) -> tuple[ResultData, FailureData | None]:
        """Of all ranks; where torchrun has ended with another code than 0, its ranks say why."""
        self.look(attempt)
        for output in self._outputs:
            output.close()
        first = self._outputs[0].found
        failed = next((rank for rank in self._ranks if self._outputs[rank].found.failures), None)
        found = first if failed is None else self._outputs[failed].found
        first.passed = found.passed = any(output.found.passed for output in self._outputs)
        result = command_result(code, found, "", time.perf_counter() - self._started)
        own = command_result(code, first, "", result.elapsed_sec)
        details = [
            {**detail, "rank": rank} for rank, output in enumerate(self._outputs) for detail in output.found.failures
        ]
        own.passed = result.passed and code == 0
        own.failure_details = details
        own.failure_count = sum(output.found.failure_count for output in self._outputs)
        own.first_failure_iteration = result.first_failure_iteration
        if self._seed is not None:
            own.metrics[SEED] = self._seed
        failure = result.failure if code == 0 else None
        if failure is not None and failed is not None:
            failure["message"] = f"rank {failed}: {failure['message']}"
        return result_to_plain(own), failure


class RankOutput:
    """The growing logs of one rank."""

    def __init__(self, folder: Path, attempt: int, rank: int, rules: OutputRules) -> None:
        self.found = OutputFindings(rules)
        self._where = folder, attempt, rank
        self._steps = StepCounter(step_file(attempt_folder(folder, attempt), rank))
        self._logs: dict[str, tuple[BinaryIO, Lines]] = {}

    def read(self) -> bool:
        """Take in what is new; whether there was something."""
        for name in ("stdout.log", "stderr.log"):
            if name not in self._logs and (path := find_file(*self._where, name)) is not None:
                self._logs[name] = path.open("rb"), Lines()
        new = False
        for file, lines in self._logs.values():
            while chunk := file.read(_CHUNK):
                new = True
                self._take(lines.feed(chunk))
        return new

    def _take(self, lines: list[str]) -> None:
        at = time.perf_counter()
        for line in lines:
            if self.found.take(line, at):
                self._steps.set(self.found.step, self.found.total)

    def close(self) -> None:
        """Take in lines that have no end; twice is harmless."""
        for file, lines in self._logs.values():
            self._take(lines.close())
            file.close()
        self._logs = {}
