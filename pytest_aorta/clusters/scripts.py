"""The script of a job. Every word that is not the user's own shell text is quoted for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Variables in a job: its folder, and which task of it this is.
JOB_VARIABLE, TASK_VARIABLE = "AORTA_JOB", "AORTA_JOB_TASK"

#: Times that SLURM may start a job again.
MAXIMUM_RESTARTS = 10

_RUN = """\
failed=0 stopped='' child=''
stop() {{
    stopped=1
    : > "$job/stopped-$task"
    if [ -n "$child" ]; then kill -TERM -- "{target}"; fi
}}
trap stop TERM
run() {{ # the number of a command, and the command
    if [ -n "$stopped" ]; then return; fi
    set -m # a process group of its own
    (eval "$2") < /dev/null &
    child=$!
    set +m
    wait "$child"
    local status=$?
    while [ "$status" -gt 128 ] && kill -0 "$child" 2> /dev/null; do # a signal has ended the wait
        wait "$child"
        status=$?
    done
    child=''
    printf '%s %s\\n' "$1" "$status" >> "$job/status-$task"
    if [ "$status" -gt {accepted} ]; then failed=2; fi
}}
"""

_END = """\
end() {{
    trap '' TERM
    {note} "$job" "$task"
}}
trap end EXIT
"""


@dataclass(frozen=True)
class JobScript:
    """What a script is made of.

    Attributes:
        options: of sbatch, each one a line that it can read; none for a job that runs at once.
        name: of the job, safe in file names.
        root: folder of the recipe.
        folder: of the job, relative to ``root``; safe without quotes.
        variables: that the commands find.
        setup: shell text that comes before them.
        tasks: for each task of the job the commands, shell text; several tasks are an array.
        throttle: tasks that run at a time; ``None`` for no limit.
        note: command that notes what has become of a task.
        runs_trials: whether the commands run pytest: an exit status of 1 says that trials have failed, and of these
            it takes care itself when it has to end.
        for_slurm: whether sbatch reads it.
    """

    options: Sequence[str]
    name: str
    root: Path
    folder: Path
    variables: Mapping[str, str]
    setup: str | None
    tasks: Sequence[Sequence[str]]
    note: Sequence[str]
    throttle: int | None = None
    runs_trials: bool = False
    for_slurm: bool = True

    def text(self) -> str:
        """The script."""
        return "\n".join([*self._header(), *self._beginning(), *self._body()]) + "\n"

    def _header(self) -> Iterable[str]:
        yield "#!/bin/bash"
        if not self.for_slurm:
            return
        is_array = len(self.tasks) > 1
        own = [f"--job-name={self.name}", f"--output={self.folder}/output-{'%a' if is_array else '0'}.txt"]
        if is_array:
            throttle = f"%{self.throttle}" if self.throttle is not None else ""
            own.append(f"--array=0-{len(self.tasks) - 1}{throttle}")
        yield from (f"#SBATCH {option}" for option in (*self.options, *own))

    def _beginning(self) -> Iterable[str]:
        yield ""
        yield f"cd -- {shlex.quote(str(self.root))} || exit 1"
        yield f"job={self.folder}"
        yield f"task={'$SLURM_ARRAY_TASK_ID' if len(self.tasks) > 1 else '0'}"
        yield "# A job that was forgotten, or is known to have ended, does nothing when it begins after all."
        yield 'if [ ! -e "$job/plan.json" ] || [ -e "$job/over-$task" ]; then exit 0; fi'
        if self.for_slurm:
            yield f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {MAXIMUM_RESTARTS} ]; then'
            yield '    echo "restarted $SLURM_RESTART_COUNT times: not started again" >&2'
            yield "    exit 3"
            yield "fi"
        yield ""
        yield from (f"export {name}={shlex.quote(value)}" for name, value in self.variables.items())
        yield f'export {JOB_VARIABLE}="$PWD/$job" {TASK_VARIABLE}="$task"'
        if self.setup:
            yield ""
            yield self.setup
            yield "# shellcheck disable=SC2181"
            yield 'if [ "$?" -ne 0 ]; then echo "the setup has failed" >&2; exit 1; fi'

    def _body(self) -> Iterable[str]:
        yield ""
        if not self.runs_trials:  # of these, pytest itself keeps the index
            yield _END.format(note=shlex.join(self.note))
        target, accepted = ("$child", 1) if self.runs_trials else ("-$child", 0)
        yield _RUN.format(target=target, accepted=accepted)
        yield "case $task in"
        for number, commands in enumerate(self.tasks):
            yield f"{number})"
            yield from (f"    run {index} {shlex.quote(command)}" for index, command in enumerate(commands))
            yield "    ;;"
        yield "esac"
        yield 'exit "$failed"'
