"""A stand-in for SLURM, for faults that a real one cannot be made to show: answers that are lost, a queue that is down.

Its commands are found on the PATH. It takes jobs, and never runs one.
"""

from __future__ import annotations

from pathlib import Path

SBATCH = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
script=${@: -1}
echo "${@:1:$#-1}" >> sbatch-asked
how=$(cat sbatch-does)
if [ "$how" = slow ]; then touch sbatch-began; while [ ! -e go ]; do sleep 0.02; done; fi
if [ "$how" = refuse ]; then echo "sbatch: error: Batch job submission failed: Invalid account" >&2; exit 1; fi
if [ "$how" != nothing ]; then
    number=$((100 + $(wc -l < jobs)))
    echo "$number|$(sed -n 's/^#SBATCH --job-name=//p' "$script")|PENDING|Resources" >> jobs
fi
if [ "$how" = lost ] || [ "$how" = nothing ]; then
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
echo "$number"
"""

SQUEUE = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
echo "$@" >> squeue-asked
if [ -e squeue-down ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
case "$*" in
*--name=*) cut -d '|' -f 1,2 jobs ;;
*) cut -d '|' -f 1,3,4 jobs ;;
esac
"""

SACCT = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
if [ ! -e accounting ]; then echo "Slurm accounting storage is disabled" >&2; exit 1; fi
cat accounting
"""

SCANCEL = """\
#!/bin/bash
cd -- "$(dirname "$0")" || exit
echo "$@" >> cancelled
"""


class StandInScheduler:
    """In a folder.

    What sbatch does: take jobs (``ok``), ``refuse`` them, take them and lose its answer (``lost``), not take them and
    answer the same (``nothing``), wait for a file ``go`` (``slow``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scancel": SCANCEL}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "jobs").touch()
        self.does("ok")

    def does(self, how: str) -> None:
        """What sbatch does from now on."""
        (self.folder / "sbatch-does").write_text(how)

    @property
    def jobs(self) -> list[list[str]]:
        """Number, name, state, reason of each job that it has."""
        return [line.split("|") for line in (self.folder / "jobs").read_text().splitlines()]

    @property
    def options(self) -> list[str]:
        """What sbatch was given before each script."""
        return (self.folder / "sbatch-asked").read_text().splitlines()

    def set_jobs(self, *jobs: list[str]) -> None:
        (self.folder / "jobs").write_text("".join("|".join(job) + "\n" for job in jobs))

    def is_down(self, down: bool) -> None:
        if down:
            (self.folder / "squeue-down").touch()
        else:
            (self.folder / "squeue-down").unlink()
