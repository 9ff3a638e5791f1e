"""SLURM with two nodes on this machine: ``python tests/support/slurm.py start FOLDER``, and ``stop FOLDER``.

All of it, its own munge included, is in one folder, and one process starts and ends it. Each node is a ``slurmd`` with
a host name, an ``/etc/hosts`` and an address of its own (namespaces of Linux, so it needs root), but with this
machine's processes, network and files.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_aorta.runtime.process_tree import become_subreaper

#: Names of the nodes, which are also their host names.
NODES = ("n0", "n1")

#: CPUs of each, however many this machine has.
CPUS = 8

#: Seconds for the daemons to start, and to end.
PATIENCE = 60.0

#: Debian's packages slurm-wlm and munge have them; the daemons are in folders that are only root's PATH.
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "unshare")

_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

CONFIGURATION = """
ClusterName=two
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/slurmctld
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=20000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
JobRequeue=1
KillWait=30
MinJobAge=600
ReturnToService=2
SlurmdTimeout=10
UnkillableStepTimeout=30
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} RealMemory=400000 Feature=scratch Gres=gpu:4
NodeName=n0 NodeHostname=localhost NodeAddr=127.0.1.1 Port={ports[1]}
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.1.2 Port={ports[2]}
PartitionName=main Nodes=n0,n1 Default=YES MaxTime=60 DefaultTime=10
PartitionName=short Nodes=n0,n1 MaxTime=1
PartitionName=single Nodes=n1 MaxTime=60 MaxNodes=1
PartitionName=cpu Nodes=n0,n1
PartitionName=gpu Nodes=n0,n1
PartitionName=debug Nodes=n0,n1
PartitionName=low Nodes=n0,n1 PreemptMode=REQUEUE
PartitionName=lowest Nodes=n0,n1 PreemptMode=CANCEL
PartitionName=high Nodes=n0,n1 PriorityTier=10 PreemptMode=OFF
"""

#: The groups that limit memory. All SLURMs of a machine have theirs by one name, so only one at a time can do so.
MEMORY = Path("/sys/fs/cgroup/memory")

#: What ends a job that takes more memory than it has asked for.
CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""

HOSTS = """
127.0.0.1 localhost
::1 localhost
127.0.1.1 n0
127.0.1.2 n1
"""

#: Start a node's slurmd where it has a host name and an /etc/hosts of its own.
_NODE = 'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && exec slurmd -D -f "$2/slurm.conf" -N "$1"'


def missing() -> str | None:
    """Why no SLURM can be started here; ``None`` where it can."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if lacking:
        return f"no {', '.join(lacking)} here (Debian: apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "only root can start two nodes of SLURM on one machine"
    tried = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True)
    return f"no namespaces for nodes of SLURM: {tried.stderr.strip()}" if tried.returncode else None


def has_limits_of_memory() -> bool:
    """Whether SLURM can end a job here that takes more memory than it has asked for."""
    return os.access(MEMORY / "cgroup.procs", os.W_OK)


@dataclass(frozen=True)
class Slurm:
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """For the commands of SLURM, and for what they start."""
        return {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": _PATH}

    def command(self, *command: str | os.PathLike[str]) -> str:
        """What a command of SLURM prints.

        Raises:
            RuntimeError: it has failed.
        """
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.variables})
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """The state of each node (``idle``, ``mixed``, ``down*``, ...)."""
        lines = self.command("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> dict[int, str]:
        """The state of every job that has not been forgotten (``RUNNING``, ``CANCELLED``, ...)."""
        found = re.findall(r"JobId=(\d+) .*? JobState=(\w+)", self.command("scontrol", "show", "jobs", "-o"))
        return {int(number): state for number, state in found}

    def cancel_all(self) -> None:
        self.command("scancel", "--full", "--signal=KILL", f"--user={os.getuid()}")
        self.command("scancel", f"--user={os.getuid()}")  # those that wait, or have just begun

    def wait_for_nodes(self, *states: str, nodes: Iterable[str] = NODES) -> None:
        give_up = time.monotonic() + PATIENCE
        while True:
            found: dict[str, str] = {}
            with suppress(RuntimeError):  # the controller is not there yet
                found = self.states()
            if found and all(found[node] in states for node in nodes):
                return
            if time.monotonic() > give_up:
                raise TimeoutError(f"not all nodes are {' or '.join(states)}: {found}; see the logs in {self.folder}")
            time.sleep(0.05)

    def processes(self, node: str) -> list[psutil.Process]:
        """All processes of a node: its daemon, and the jobs with all that they have started."""
        daemon = self._daemon(node)
        if daemon is None:
            return []
        return [process for process in psutil.process_iter() if _host_of(process.pid) == _host_of(daemon)]

    def kill_node(self, node: str) -> None:
        (self.folder / f"{node}.off").touch()
        while processes := self.processes(node):
            # The daemon last: its namespace says which processes are the node's.
            daemon = self._daemon(node)
            processes.sort(key=lambda process: process.pid == daemon)
            _signal_all(processes[:-1] or processes, signal.SIGSTOP)
            _signal_all(processes[:-1] or processes, signal.SIGKILL)

    def kill_daemon(self, node: str) -> None:
        (self.folder / f"{node}.off").touch()
        daemon = self._daemon(node)
        if daemon is not None:
            os.kill(daemon, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        (self.folder / f"{node}.off").unlink(missing_ok=True)
        self.wait_for_nodes("idle", "mixed", "allocated", nodes=[node])

    def _daemon(self, node: str) -> int | None:
        with suppress(OSError, ValueError):
            pid = int((self.folder / f"{node}.daemon").read_text())
            if _host_of(pid) not in (None, _host_of(os.getpid())):
                return pid
        return None


class Daemons:
    def __init__(self, folder: Path, *, limits_memory: bool = False) -> None:
        self.slurm = Slurm(folder)
        self.folder = folder
        self._limits_memory = limits_memory
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all of them, and wait for the nodes.

        Raises:
            RuntimeError: one has ended at once.
            TimeoutError: a node is not there in time.
        """
        become_subreaper()
        self.folder.chmod(0o755)  # else munged refuses it
        (self.folder / "server.pid").write_text(str(os.getpid()))
        (self.folder / "cgroup.conf").write_text(CGROUPS)
        plugin = "task/cgroup" if self._limits_memory else "task/none"
        configuration = CONFIGURATION.format(folder=self.folder, ports=_free_ports(3), cpus=CPUS, task_plugin=plugin)
        (self.folder / "slurm.conf").write_text(configuration)
        for number in range(4):  # numbers of GPUs, with no device behind them
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")
        (self.folder / "hosts").write_text(HOSTS)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = (f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "log", "pid", "seed"))
        munged = self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        _wait_for(self.folder / "munge.socket", munged)
        self._start("slurmctld", "-D", "-i", "-f", f"{self.folder}/slurm.conf")
        self.start_nodes()
        self.slurm.wait_for_nodes("idle")

    def start_nodes(self) -> None:
        for node in NODES:
            running = node in self._nodes and self._nodes[node].poll() is None
            if not running and not (self.folder / f"{node}.off").exists():
                namespaces = ("unshare", "--uts", "--mount")
                self._nodes[node] = self._start(*namespaces, "sh", "-c", _NODE, "sh", node, str(self.folder))
                (self.folder / f"{node}.daemon").write_text(str(self._nodes[node].pid))

    def stop(self) -> None:
        """End everything, jobs and the ``srun`` that wait for them included, and remove the folder."""
        give_up = time.monotonic() + PATIENCE
        while (left := self._clients() + psutil.Process().children(recursive=True)) and time.monotonic() < give_up:
            _signal_all(left, signal.SIGKILL)
            _reap()
        shutil.rmtree(self.folder, ignore_errors=True)
        for node in NODES if self._limits_memory else ():
            for folder in sorted(MEMORY.glob(f"slurm_{node}/**"), reverse=True):
                with suppress(OSError):
                    folder.rmdir()

    def _clients(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.name() in ("srun", "salloc", "sbatch")
                if ours and process.environ().get("SLURM_CONF") == f"{self.folder}/slurm.conf":
                    found.append(process)
        return found

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            environ = {**os.environ, **self.slurm.variables}
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ)


def serve(folder: Path, parent: int | None, *, limits_memory: bool = False) -> None:
    """Start a cluster, print ``ready``, and end it at SIGTERM, or when the process ``parent`` has gone."""

    def end(*_: object) -> None:
        raise SystemExit

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RuntimeError(f"{folder} is not empty")
    daemons = Daemons(folder, limits_memory=limits_memory)
    try:
        daemons.start()
        print("ready", flush=True)
        while parent is None or os.getppid() == parent:
            time.sleep(0.2)
            _reap()
            daemons.start_nodes()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        daemons.stop()


def start_server(folder: Path, *, stays: bool = False, limits_memory: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "serve", str(folder), *([] if stays else [f"--parent={os.getpid()}"])]
    command += ["--limits-memory"] if limits_memory else []
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if not stays else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        _, said = server.communicate(timeout=PATIENCE)
        raise RuntimeError(f"SLURM could not be started in {folder}: {(said or '').strip()[-2000:]}")
    return server


def stop_server(folder: Path) -> None:
    try:
        server = psutil.Process(int((folder / "server.pid").read_text()))
    except (OSError, ValueError, psutil.Error):
        raise RuntimeError(f"no SLURM of this script runs in {folder}") from None
    server.terminate()
    server.wait(2 * PATIENCE)


def _host_of(pid: int) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/uts")
    return None


def _signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not path.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"{process.args!r} has ended with {process.returncode}, without {path}")
        time.sleep(0.02)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        probes = [open_sockets.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("start", "stop", "serve"), help="`serve` starts it in the foreground")
    parser.add_argument("folder", type=Path, help="for all its files; a new one, which is removed at the end")
    parser.add_argument("--parent", type=int, help="pid without which `serve` ends")
    parser.add_argument("--limits-memory", action="store_true", help="by groups of Linux; one such SLURM at a time")
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    try:
        if given.action == "stop":
            stop_server(folder)
        elif reason := missing():
            raise RuntimeError(reason)
        elif given.action == "serve":
            serve(folder, given.parent, limits_memory=given.limits_memory)
        else:
            start_server(folder, stays=True, limits_memory=given.limits_memory)
            print(f"export SLURM_CONF={shlex.quote(f'{folder}/slurm.conf')}")
    except (OSError, RuntimeError, TimeoutError) as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
