"""``pytest-aorta check``: can this machine, or another one, be trusted? Trials of workloads that check themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import click

from pytest_aorta.cli.shared import AnswersByStatus, columns, json_option
from pytest_aorta.common.texts import counted, format_ranges, join_names, one_line
from pytest_aorta.plan import Selection, hosts_of, make_plan
from pytest_aorta.registry import Registry
from pytest_aorta.runtime.resources.devices import are_named_only, core_shares, find_devices, threads_of
from pytest_aorta.settings import PREFIX, RequestError
from pytest_aorta.trial_runner import Runner, check_resources, check_results
from pytest_aorta.trials.execution import Execution, Limits, Resources
from pytest_aorta.workspace.trial_store import stamp

if TYPE_CHECKING:
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.probe.health.model import HealthReading
    from pytest_aorta.runtime.hosts import HostChannel
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.triage.where import Node
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths

#: Trials of each workload on each device: enough to tell a slow device from a slow moment.
_TRIALS = 3

#: Seconds of a trial at least, and those that it may take beside them.
_SHORTEST, _PATIENCE = 1.0, 120.0

#: Share of the time for the workloads that all devices of a host run together.
_TOGETHER = 0.2

#: A device is slow if its steps take so much longer than those of the others of its model. Other programs run on CPUs.
_MARGIN = {"gpu": 0.1, "cpu": 0.25}

_GEMM = {"steps": "1", "dtypes": "float32,tf32,float64,bfloat16,float16,float8"}

#: Workloads of a device, with their options on a GPU and on a core.
_ON_DEVICES: dict[str, dict[str, dict[str, str]]] = {
    "gemm": {
        "gpu": {**_GEMM, "sizes": "64x64x64,33x65x17,1024x1024x1024,2048x256x2048", "memory": "0.2"},
        "cpu": {**_GEMM, "sizes": "64x64x64,33x65x17,256x256x256"},
    },
    "attention": {"gpu": {"length": "1024", "heads": "8"}, "cpu": {}},
    "copies": {"gpu": {"memory": "0.5", "steps": "1"}, "cpu": {"megabytes": "8"}},
    "determinism": {"gpu": {"order_of_sums": "passes"}, "cpu": {"order_of_sums": "passes"}},
}

#: Workloads of a host: between its devices, and beside them.
_ON_HOSTS = ("allreduce", "alltoall", "peers", "checkpoint", "dataloader")


@dataclass
class _Device:
    """What gets a row: a GPU, a core, or all of a host together.

    ``trials``: facts and records, by workload; ``problem``: why it was not checked; ``reasons``: why it is not fit.
    """

    host: str
    name: str
    kind: str
    resources: Resources
    mitigations: tuple[str, ...] = ("none",)
    trials: dict[str, list[tuple[TrialFacts, TrialResult]]] = field(default_factory=lambda: defaultdict(list))
    problem: str = ""
    reasons: list[str] = field(default_factory=list)
    node: Node | None = None

    @property
    def label(self) -> str:
        return f"{self.host} {self.name}"

    @property
    def facts(self) -> list[TrialFacts]:
        return [facts for those in self.trials.values() for facts, _ in those]

    @property
    def hangs(self) -> bool:
        """Whether a trial was not over at its deadline, whatever it was doing then."""
        return any(facts.exit_status == "timeout" for facts in self.facts)

    @property
    def model(self) -> str:
        """Devices of one model compute the same bits, as fast."""
        for _, record in (each for those in self.trials.values() for each in those):
            name = record.result.metrics.get("device_name") or (record.env.get("host") or {}).get("cpu_model")
            if name:
                return str(name)
        return ""


@dataclass
class _Host:
    """``survey``: what ``survey`` has returned there; ``counters``: those that have moved meanwhile."""

    name: str
    spec: str | None
    survey: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    devices: list[_Device] = field(default_factory=list)
    together: _Device | None = None
    counters: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


@click.command("check", cls=AnswersByStatus)
@click.option(
    "--minutes",
    type=click.FloatRange(0, 24 * 60, min_open=True),
    default=2.0,
    show_default=True,
    metavar="N",
    help="About how long it takes.",
)
@click.option("--only", default="", metavar="A,B", help=f"Of {', '.join([*_ON_DEVICES, *_ON_HOSTS])}.")
@click.option("--hosts", default="", metavar="A,B", help="These hosts, by ssh, or as --aorta-host names them.")
@click.option(
    "--results-dir", type=click.Path(path_type=Path), default="results/check", show_default=True, metavar="DIR"
)
@json_option
def check(minutes: float, only: str, hosts: str, results_dir: Path, as_json: bool) -> None:
    """Each GPU, or each core where there is none, runs products, attention, copies and sums, all at once; then all
    devices of a host exchange data. Results are compared bit by bit and with float64 on the CPU, devices with each
    other. Exit status 0: fit; 1: not fit, or not checked; 4: wrong use.
    """
    wanted = [each.strip() for each in only.split(",")] if only else [*_ON_DEVICES, *_ON_HOSTS]
    if unknown := [each for each in wanted if each not in (*_ON_DEVICES, *_ON_HOSTS)]:
        raise RequestError(f"--only {', '.join(unknown)}: expected of {', '.join([*_ON_DEVICES, *_ON_HOSTS])}")
    run = _Check(_hosts(hosts), results_dir, 60 * minutes, wanted)
    check_results(Selection(), results_dir, f"--results-dir {results_dir}")
    try:
        run.run()
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        raise click.exceptions.Exit(130) from None  # no answer
    finally:
        run.close()
    run.judge()
    if as_json:
        click.echo(json.dumps(run.as_json(), indent=1))
    else:
        click.echo("\n".join(run.lines()))
    if not run.is_fit:
        raise click.exceptions.Exit(1)


def _hosts(text: str) -> list[_Host]:
    if not text:
        return [_Host(socket.gethostname(), None)]
    words = [each.strip() for each in text.split(",")]
    if not all(words):
        raise RequestError(f"--hosts {text!r}: expected names of hosts, separated by commas")
    specs = hosts_of([each if "=" in each or "popen" in each else f"ssh={each}" for each in words], "--hosts")
    from pytest_aorta.runtime.hosts import without_values

    return [_Host(f"{without_values(spec).removeprefix('ssh=')}", spec) for spec in specs]


def survey() -> dict[str, Any]:
    """What this host has: ids of GPUs, groups of CPUs that are one core each, and counters of its health."""
    from pytest_aorta.probe.health.reading import read_health  # and with it pydantic

    found = find_devices()
    cpus = os.sched_getaffinity(0)
    return {
        "name": socket.gethostname(),
        "vendor": found.vendor,
        "devices": [] if are_named_only(found) else list(found.visible),
        "hidden_by": list(found.hidden_by),
        "cores": [list(share) for share in core_shares(threads_of(cpus), cpus)],
        "can_pin": shutil.which("taskset") is not None,
        "health": read_health(),
    }


def serve_survey(argument: None, channel: HostChannel) -> None:
    """On another host: answer each message with a survey."""
    while channel.receive() is not None:
        channel.send(survey())


def _survey(host: _Host) -> dict[str, Any]:
    if host.spec is None:
        return survey()
    from pytest_aorta.runtime.hosts import HostConnection

    answers: SimpleQueue[Any] = SimpleQueue()
    service = f"{__name__}:serve_survey"
    connection = HostConnection(host.spec, service, None, on_message=answers.put, on_death=answers.put)
    connection.start()
    try:
        connection.send("survey")
        answer = answers.get(timeout=_PATIENCE)
    finally:
        connection.close()
    if isinstance(answer, Exception):
        raise answer
    return dict(answer)


class _Check:
    """All trials of one check."""

    def __init__(self, hosts: list[_Host], results: Path, seconds: float, wanted: Sequence[str]) -> None:
        self.hosts, self.results, self._wanted = hosts, results, wanted
        self._registry = Registry.load(())
        self._until = time.monotonic() + seconds
        self._seconds = seconds
        self._runners: dict[str, Runner] = {}
        self._name = stamp()  # one run, with one sampler of health on each host
        self._shown = 0

    @property
    def devices(self) -> list[_Device]:
        return [device for host in self.hosts for device in host.devices]

    @property
    def rows(self) -> list[_Device]:
        """What was to be checked."""
        alone, beside = (any(name in self._wanted for name in names) for names in (_ON_DEVICES, _ON_HOSTS))
        every = [(each, alone) for each in self.devices]
        every += [(host.together, beside) for host in self.hosts if host.together is not None]
        return [each for each, is_wanted in every if is_wanted or each.reasons]

    @property
    def is_fit(self) -> bool:
        return not any(host.problem for host in self.hosts) and not any(
            each.problem or each.reasons for each in self.rows
        )

    def run(self) -> None:
        self._ask_all()
        for host in self.hosts:
            self._find_devices(host)
        alone = [name for name in _ON_DEVICES if name in self._wanted]
        started = 4.0  # seconds that the start of a trial takes, until it is measured
        for number, name in enumerate(alone):
            left = self._until - time.monotonic() - _TOGETHER * self._seconds
            duration = max(_SHORTEST, left / (len(alone) - number) / _TRIALS - started)
            begun = time.monotonic()
            self._run(name, _TRIALS, duration, self.devices)
            started = max(0.0, (time.monotonic() - begun) / _TRIALS - duration)
        together = [host.together for host in self.hosts if host.together is not None]
        beside = [name for name in _ON_HOSTS if name in self._wanted]
        for number, name in enumerate(beside):
            left = max(0.0, self._until - time.monotonic())
            those = [each for each in together if name != "peers" or len(each.resources.devices or ()) > 1]
            if those:
                self._run(name, 1, max(_SHORTEST, left / (len(beside) - number) - started), those)
        before = {host.name: host.survey.get("health") for host in self.hosts}
        self._ask_all()
        for host in self.hosts:
            if not host.problem:
                _note_health(host, cast("HealthReading", before[host.name]), host.survey["health"])

    def _ask_all(self) -> None:
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            for host, answer in zip(self.hosts, pool.map(_answer, self.hosts), strict=True):
                if isinstance(answer, str):
                    host.problem = host.problem or answer
                else:
                    host.survey = answer

    def _find_devices(self, host: _Host) -> None:
        if host.problem:
            return
        found, hosts = host.survey, (host.spec,) if host.spec else ()
        devices: list[int] = found["devices"]
        if found["vendor"] != "none" and not devices:
            host.problem = f"its GPUs are hidden by {join_names(found['hidden_by'])}"
            return
        for gpu in devices:
            host.devices.append(_Device(host.name, f"GPU {gpu}", "gpu", Resources(devices=(gpu,), hosts=hosts)))
        for share in found["cores"] if not devices and found["can_pin"] else ():
            pinned = f"{PREFIX}taskset -c {format_ranges(share)}"
            host.devices.append(
                _Device(host.name, f"core {share[0]}", "cpu", Resources(hosts=hosts), (pinned, "OMP_NUM_THREADS=1"))
            )
        if not host.devices:
            host.devices.append(_Device(host.name, "CPU", "cpu", Resources(hosts=hosts)))
        every = Resources(devices=tuple(devices) or None, hosts=hosts)
        host.together = _Device(host.name, "together", "host", every)

    def _run(self, name: str, trials: int, duration: float, devices: Sequence[_Device]) -> None:
        """Trials of one workload, on all devices at once, one after the other on each."""
        running: list[tuple[_Device, Runner, TrialJob, TrialPaths]] = []
        timeout = _PATIENCE + 3 * duration
        for device in devices:
            if device.problem or device.hangs:
                continue
            config = {**_ON_DEVICES.get(name, {}).get(device.kind, {}), "duration": f"{duration:.1f}"}
            if name == "allreduce":
                config = {"sizes": "1000,65537"}
            resources, ranks = _shares(name, device)
            selection = Selection(
                workloads=("copies" if name == "peers" else name,),
                trials=trials,
                mitigations=(device.mitigations,),
                config=config,
                execution=Execution(isolation="fork", nproc=ranks),
                limits=Limits(timeout=timeout),
                resources=resources,
            )
            try:
                check_resources(selection, "--{} {}".format)
                running += self._start(device, selection)
            except RequestError as error:
                device.problem = one_line(str(error))
        give_up = time.monotonic() + trials * timeout + _PATIENCE
        total = len(running)
        while running:
            for each in [each for each in running if each[2].is_over()]:
                running.remove(each)
                self._finish(name, *each)
                if each[0].hangs:  # and would again, until each deadline
                    for _, _, job, _ in (other for other in running if other[0] is each[0]):
                        job.interrupt("a trial before it has hung")
            self._show(f"{name}: {total - len(running)} of {counted(total, 'trial')}, {duration:.0f} s each")
            if time.monotonic() > give_up:
                for _, _, job, _ in running:
                    job.interrupt("the time of the check was over; other programs may hold the device")
            time.sleep(0.1 if running else 0)
        if not os.isatty(2):
            click.echo(f"{name}: {counted(total, 'trial')}", err=True)

    def _start(self, device: _Device, selection: Selection) -> Iterator[tuple[_Device, Runner, TrialJob, TrialPaths]]:
        plan = make_plan(selection, self._registry)
        key = f"{device.label} {selection.resources}"
        if key not in self._runners:
            folder = self.results / _file_name(device.host) / _file_name(device.name)
            self._runners[key] = Runner(selection, folder, self._name)
        runner = self._runners[key]
        runner.add_plan(plan)
        for spec in plan.trials:
            paths = plan.paths(spec)
            yield device, runner, runner.start(spec, paths, urgent=False), paths

    def _finish(self, name: str, device: _Device, runner: Runner, job: TrialJob, paths: TrialPaths) -> None:
        from pytest_aorta.triage.facts import CellKey, facts_of

        record = job.finish()
        content = record.to_dict()
        runner.store.write(paths, content)
        facts = facts_of(content, str(paths))
        # The node test compares places: here a place is a device.
        place, key = replace(facts.place, host=device.label), CellKey(name, device.kind)
        device.trials[name].append((replace(facts, place=place, key=key), record))

    def close(self) -> None:
        self._show("")
        for runner in self._runners.values():
            runner.close()

    def _show(self, text: str) -> None:
        if os.isatty(2):
            click.echo(f"\r{text:<{self._shown}}" + ("" if text else "\r"), nl=False, err=True)
            self._shown = len(text)

    # Verdicts

    def judge(self) -> None:
        from pytest_aorta.triage.where import NODE_LEVEL, compare_nodes

        for device in self.rows:
            device.reasons += _failures(device)
            if not device.facts:
                device.problem = device.problem or "it ran no trial"
        alike = defaultdict[str, list[_Device]](list)
        for device in self.devices:
            alike[device.model].append(device)
        for those in alike.values():
            margin = _MARGIN.get(those[0].kind, 0.1)
            nodes = {each.name: each for each in compare_nodes((it for one in those for it in one.facts), margin)}
            for device in those:
                device.node = node = nodes.get(device.label)
                if node is not None and node.p_slow < NODE_LEVEL and node.ratio is not None:
                    device.reasons.append(next(it for it in node.reasons if "slower" in it))
            sound = [each for each in those if not any(facts.is_failure for facts in each.facts)]
            for device, text in list(_other_bits(sound)):
                device.reasons.append(text)

    def lines(self) -> Iterator[str]:
        many = len(self.hosts) > 1
        for host in self.hosts:
            kinds = Counter(device.model for device in host.devices)
            what = join_names([f"{number} of {model}" for model, number in kinds.items() if model])
            yield f"{host.name}: " + (f"not checked: {host.problem}" if host.problem else what)
        rows = [["Host", "Device", "Trials", "Failed", "Step time", "Verdict"]]
        for device in self.rows:
            facts, ratio = device.facts, device.node.ratio if device.node else None
            bad = sum(each.outcome in ("failed", "timeout") for each in facts)
            speed = "" if ratio is None else f"{ratio - 1:+.0%}"
            place = device.host if many else ""
            rows.append([place, device.name, str(len(facts)), str(bad), speed, _verdict(device)])
        if len(rows) > 1:
            rows[0][0] = rows[0][0] if many else ""
            yield from ["", *columns(rows, right=(2, 3, 4)), ""]
        for host in self.hosts:
            where = f"{host.name}: " if many else ""
            yield from (f"{where}{text}" for text in (*host.counters, *host.unread))
        failing = [device for device in self.devices if any(each.is_failure for each in device.facts)]
        if len(self.devices) > 1 and len(failing) == len(self.devices):
            yield "All devices fail: suspect what they share, drivers and libraries, before a device."
        bad_ones = [device.label if many else device.name for device in self.rows if device.reasons or device.problem]
        bad_ones += [host.name for host in self.hosts if host.problem]
        yield f"Not fit: {join_names(bad_ones)}." if bad_ones else "Fit."
        yield f"The trials: {self.results}"

    def as_json(self) -> dict[str, Any]:
        return {
            "fit": self.is_fit,
            "hosts": [
                {
                    "name": host.name,
                    "problem": host.problem or None,
                    "counters": host.counters,
                    "not_read": host.unread,
                    "devices": [
                        {
                            "name": device.name,
                            "model": device.model,
                            "trials": len(device.facts),
                            "failed": sum(each.is_failure for each in device.facts),
                            "step_time": device.node.ratio if device.node else None,
                            "problem": device.problem or None,
                            "reasons": device.reasons,
                        }
                        for device in self.rows
                        if device.host == host.name
                    ],
                }
                for host in self.hosts
            ],
        }


def _answer(host: _Host) -> dict[str, Any] | str:
    try:
        return _survey(host)
    except Exception as error:  # of the connection, whatever its type: this host is not checked
        return one_line(str(error)) or type(error).__name__


def _shares(name: str, device: _Device) -> tuple[Resources, int | None]:
    """What a workload has of the devices, and its ranks: one for each of several GPUs, else two on the CPU."""
    mine = device.resources
    if name == "peers":  # not a lease of one of them, but all
        return replace(mine, devices=None), None
    if name not in ("allreduce", "alltoall"):
        return mine, None
    several = len(mine.devices or ()) > 1
    return (mine, len(mine.devices or ())) if several else (replace(mine, devices=mine.devices and ()), 2)


def _file_name(text: str) -> str:
    return "".join(each if each.isalnum() or each in "-." else "_" for each in text)


def _failures(device: _Device) -> Iterator[str]:
    """``gemm: wrong_product shape 64x64x64 in 3 of 3 trials``, for each workload that has failed."""
    for name, those in device.trials.items():
        bad = [facts for facts, _ in those if facts.outcome in ("failed", "timeout")]
        if bad:
            ways = Counter(facts.signature.text if facts.signature else facts.outcome for facts in bad)
            yield f"{name}: {ways.most_common(1)[0][0]} in {len(bad)} of {counted(len(those), 'trial')}"
        lost = [record for facts, record in those if not facts.is_counted]
        if device.hangs:  # the others were called off
            lost = [record for record in lost if record.exit_status == "timeout"]
        if lost:
            said = lost[0].failure.message if lost[0].failure else ""
            yield f"{name}: {counted(len(lost), 'trial')} lost: {one_line(said or '')}"


def _checksums(device: _Device) -> Iterator[tuple[str, str]]:
    """Names of results, and their checksums."""
    for name, those in device.trials.items():
        for _, record in those:
            for case in record.result.metrics.get("cases") or ():
                if isinstance(case, Mapping) and "checksum" in case:
                    what = " ".join(str(case[key]) for key in ("backend", "shape", "dtype") if key in case)
                    yield f"{name} {what}{' causal' if case.get('causal') else ''}", str(case["checksum"])


def _other_bits(devices: Sequence[_Device]) -> Iterator[tuple[_Device, str]]:
    """Devices of one model whose results differ from those of most of the others."""
    results: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for number, device in enumerate(devices):
        for what, checksum in _checksums(device):
            results[what][number].add(checksum)
    wrong = defaultdict[int, list[str]](list)
    for what, of_devices in results.items():
        common = Counter(checksum for checksums in of_devices.values() for checksum in checksums).most_common(1)[0][0]
        agree = sum(common in checksums for checksums in of_devices.values())
        for number, checksums in of_devices.items():
            if checksums != {common} and 2 * agree > len(of_devices):
                wrong[number].append(what)
            elif checksums != {common} and len(of_devices) == 2:
                for each in of_devices:
                    wrong[each].append(what)
    for number, those in wrong.items():
        rest = "the other one" if len(devices) == 2 else "most others"
        yield (
            devices[number],
            f"other bits than {rest} of its model in {those[0]}"
            + (f" and {counted(len(those) - 1, 'other case')}" if len(those) > 1 else ""),
        )


def _verdict(device: _Device) -> str:
    if device.problem:
        return f"not checked: {device.problem}"
    if not device.reasons:
        return "fit"
    return f"not fit: {'; '.join(device.reasons)}"


# Counters of devices and host

#: What no sound machine shows while it runs our own programs; the others are only reported.
_SERIOUS_COUNTER, _SERIOUS_EVENTS = re.compile("uncorrect|machine_check|failed"), ("Xid", "RAS", "machine check")


def _note_health(host: _Host, before: HealthReading, after: HealthReading) -> None:
    """Note counters that have moved and events, at the device that they are of, and what cannot be read."""
    from pytest_aorta.probe.health.model import difference

    change = difference(before, after)
    if change.host is None or host.together is None:
        return
    rows = {device.name: device for device in host.devices}
    unread: dict[str, list[str]] = defaultdict(list)
    for name, part in {"host": change.host, **change.devices}.items():
        row = rows.get(name.removeprefix("NVIDIA ").removeprefix("AMD "), host.together)
        for counter, by in part.counters.items():
            host.counters.append(f"{name}: {counter} +{by}")
            if _SERIOUS_COUNTER.search(counter):
                row.reasons.append(f"{counter} +{by} on {name}")
        for event in part.events:
            said = f"{event.kind}{'' if event.code is None else f' {event.code}'} on {name}: {event.text}"
            host.counters.append(said)
            if event.kind in _SERIOUS_EVENTS:
                row.reasons.append(said)
        throttled = [f"{reason} in {share:.0%} of readings" for reason, share in part.throttled.items()]
        host.counters += [f"{name}: throttled: {join_names(throttled)}"] if throttled else []
        for what, why in part.unreadable.items():
            unread["not there" if why == "none" else why].append(what if name == "host" else f"{name} {what}")
    host.unread += [f"not read: {join_names(those)} ({why})" for why, those in unread.items()]
