"""Scripts of jobs: what they say to sbatch, and that no word reaches a shell unquoted."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.recipes import recipe_of

from pytest_aorta.common.conditions import Json
from pytest_aorta.workflow.clusters import Configuration
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.project import Project
from pytest_aorta.workflow.recipe import shell_commands
from pytest_aorta.workflow.submission import plan_jobs, script_text

GOLDEN = Path(__file__).with_name("golden")

CLUSTERS = """
[[cluster]]
name = "here"
identify.always = true
scheduler = "slurm"
submit_options = ['--constraint="scratch"']
array_throttle = 3
maximum_array_size = 4
[[cluster.partition]]
name = "cpu"
maximum_gpus_per_job = 0
maximum_cpus_per_job = 64
cpus_per_node = 8
memory_per_cpu = "1970M"
account_suffix = "-cpu"
[[cluster.partition]]
name = "gpu"
minimum_gpus_per_job = 1
gpus_per_node = 4
memory_per_gpu = "62G"
account_suffix = "-gpu"
[[cluster.partition]]
name = "debug"
prevent_auto_select = true
"""

COMMAND = """
[[action]]
name = "act"
command = "work {directory}"
products = ["done"]
"""

#: Name of a golden script to what the action has, and its groups.
CASES: dict[str, tuple[str, list[list[str]]]] = {
    "cpu": (
        'launchers = ["mpi"]\n[action.resources]\nthreads_per_process = 2\nprocesses.per_directory = 3\n'
        'walltime.per_directory = "00:20:30"',
        [["a", "b"]],
    ),
    "gpu": (
        'launchers = ["openmp", "srun"]\n[action.resources]\nthreads_per_process = 2\ngpus_per_process = 2\n'
        "processes.per_submission = 4",
        [["a"]],
    ),
    "memory_per_cpu": ("resources.memory.per_cpu_mb = 100", [["a"]]),
    "memory_per_gpu": ("resources.memory.per_gpu_mb = 100\nresources.gpus_per_process = 1", [["a"]]),
    "array": ("", [["a", "b"], ["c", "d"]]),
    "account": (
        'submit_options.here = {account = "proj", setup = "module load x", custom = ["--qos=low", "--mail-type=END"]}',
        [["a"]],
    ),
    "partition": ('submit_options.here = {partition = "debug", account = "proj"}', [["a"]]),
}


def scripts(
    text: str, groups: Sequence[Sequence[str]], tmp_path: Path, cluster: str = "here", clusters: str = ""
) -> list[str]:
    (tmp_path / "clusters.toml").write_text(clusters or CLUSTERS)
    configuration = Configuration((tmp_path,))
    found = configuration.cluster(cluster)
    project = Project(recipe_of(text))
    [action] = project.recipe.actions
    jobs = plan_jobs(project, found, configuration.launchers_on(found.name), action, groups)
    return [job.script.replace(job.job.name, "act-NAME").replace(sys.executable, "/bin/python") for job in jobs]


@pytest.mark.parametrize("name", [*CASES, "trials", "trials_on_two_nodes"])
def test_scripts_are_as_they_were_looked_at(name: str, tmp_path: Path) -> None:
    """One of them whole, of the others how they differ from it.

    After a change, look at them again: run with ``REGENERATE=1`` in the environment, then ``git diff``.
    """
    if name in CASES:
        more, groups = CASES[name]
        [script] = scripts(COMMAND + more, groups, tmp_path)
    else:
        nodes = "distributed.elastic.nnodes = 2" if "two" in name else ""
        text = f'[[action]]\nname = "act"\nworkload = "w"\ntrials = 9\n{nodes}\n'
        text += "resources = {processes.per_submission = 4, gpus_per_process = 1}"
        [script] = scripts(text, [["local-none/0", "local-none/1"]], tmp_path)
    text = script
    if name != "cpu":
        whole = (GOLDEN / "cpu.sh").read_text().splitlines(keepends=True)
        text = "".join(difflib.unified_diff(whole, script.splitlines(keepends=True), "cpu.sh", "cpu.sh", n=0))
    file = GOLDEN / (f"{name}.sh" if name == "cpu" else f"{name}.diff")
    if "REGENERATE" in os.environ:
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.sh")), ids=lambda file: file.stem)
def test_shellcheck_has_nothing_to_say(file: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here (Debian: apt-get install shellcheck)")
    # SC2317: what a trap calls looks as if it were never called.
    done = subprocess.run(["shellcheck", "--exclude=SC2317", str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_row_1_0_can_say_of_a_job(tmp_path: Path) -> None:
    """In Row, an action has ``output_file_*`` and memory by these names."""
    more = """
        resources = {memory_per_gpu_mb = 100, gpus_per_process = 2}
        [action.submit_options.here]
        output_file_path = "logs/of it"
        output_file_name = "{action_name}-%j.txt"
        """
    [script] = scripts(COMMAND + textwrap.dedent(more), [["a"]], tmp_path)
    assert '#SBATCH --output="logs/of it/act-%j.txt"\n' in script
    assert "#SBATCH --mem-per-gpu=100M\n" in script
    assert "#SBATCH --gpus-per-task=2\n" in script
    (tmp_path / "other").mkdir()
    other = CLUSTERS.replace('name = "here"', 'name = "here"\nslurm_gpus_per_task = "--gres=gpu:"')
    [script] = scripts(COMMAND + textwrap.dedent(more), [["a"]], tmp_path / "other", clusters=other)
    assert "#SBATCH --gres=gpu:2\n" in script


def test_groups_of_one_size_are_an_array_but_on_this_host_and_others_jobs_of_their_own(tmp_path: Path) -> None:
    found = scripts(COMMAND, [["a", "b"]] * 6 + [["c"]], tmp_path)
    arrays = [[line for line in script.splitlines() if "--array" in line] for script in found]
    assert arrays == [["#SBATCH --array=0-3%3"], ["#SBATCH --array=0-1%3"], []]
    found = scripts(COMMAND, [["a"], ["b"]], tmp_path, "none")
    assert len(found) == 2
    assert "SBATCH" not in "".join(found)


ONE_LINE = "not one line of printable text"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("resources.processes.per_submission = 4", "action 'act' has 4 processes, and no launcher that starts them"),
        ('launchers = ["mpi", "srun"]', "launchers mpi and srun both start processes"),
        ("resources.memory.per_gpu_mb = 100", "per_gpu_mb without resources.gpus_per_process"),
        ('submit_options.here = {custom = ["--x=two\\nlines"]}', ONE_LINE),
        ('submit_options.here = {account = "es\\u001bcape"}', ONE_LINE),
    ],
)
def test_what_no_job_can_be_is_refused(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        scripts(COMMAND + more, [["a"]], tmp_path)


#: A command of which every word is written to a file, each ended by a NUL.
STUB = '#!/bin/bash\nprintf \'%s\\0\' "$@" >> "$STUB_OUT"\n'

_NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("'\"$`\\\n ;&|*?{}()#!~"),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_NAMES, min_size=1, max_size=3), _NAMES, _NAMES)
@example(["a b", "c'd", 'e"f', "new\nline", "$(touch owned)", "`touch owned`", "-n", "{directory}"], "v $(x)", "r\ns")
def test_no_name_reaches_a_shell_unquoted(tmp_path: Path, names: list[str], value: str, folder: str) -> None:
    """Directories, values and the folder of the recipe, by the real bash."""
    root = tmp_path / folder.replace("/", "_") if folder not in (".", "..") else tmp_path / "dots"
    job = root / ".aorta/jobs/j"
    job.mkdir(parents=True, exist_ok=True)
    (job / "job.json").touch()
    (job / "task-0.log").unlink(missing_ok=True)
    stub, out, noted = tmp_path / "stub", tmp_path / "out", tmp_path / "noted"
    stub.write_text(STUB)
    stub.chmod(0o755)
    out.unlink(missing_ok=True)
    noted.unlink(missing_ok=True)
    template = f"{stub} {{directory}} {{/value}} {{workspace_path}}"
    values: list[Json] = [{"value": value}] * len(names)
    lines = shell_commands(template, names, values, Path(folder))
    note = ["env", f"STUB_OUT={noted}", str(stub), "noted", value]
    script = script_text(
        options=[],
        name="j",
        root=root,
        folder=Path(".aorta/jobs/j"),
        variables={"ACTION_NAME": value},
        setup=None,
        tasks=[lines],
        note=note,
    )
    done = subprocess.run(
        ["bash"],
        input=script.encode(),
        env={**os.environ, "STUB_OUT": str(out)},
        cwd=tmp_path,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    words = out.read_bytes().decode().split("\0")[:-1]
    assert words == [word for name in names for word in (name, value, str(Path(folder)))]
    assert noted.read_bytes().decode().split("\0") == ["noted", value, ".aorta/jobs/j", "0", ""]
    assert not list(tmp_path.rglob("owned"))


def job_script(root: Path, commands: list[str], setup: str | None = None) -> tuple[Path, str]:
    folder = root / ".aorta/jobs/j"
    folder.mkdir(parents=True)
    (folder / "job.json").touch()
    return folder, script_text(None, "j", root, Path(".aorta/jobs/j"), {}, setup, [commands], ["true"])


@pytest.mark.parametrize("command", ["exit 3", "false", "cd /; touch x-$$; kill -9 $BASHPID"])
def test_one_failing_directory_does_not_end_the_others(command: str, tmp_path: Path) -> None:
    """In Row it does."""
    (tmp_path / "x").mkdir()
    lines = [command.replace("x-$$", shlex.quote(str(tmp_path / "x/1"))), f"pwd > {shlex.quote(str(tmp_path / 'ran'))}"]
    folder, script = job_script(tmp_path, lines)
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True)
    assert done.returncode == 2
    assert (tmp_path / "ran").read_text() == f"{tmp_path}\n"
    statuses = [line for line in (folder / "task-0.log").read_text().splitlines() if line.startswith("status")]
    assert [line.split()[2] == "0" for line in statuses] == [False, True]


def test_a_job_that_is_started_again_runs_what_had_not_succeeded_and_notes_where(tmp_path: Path) -> None:
    lines = [f"echo {name} >> ran; [ {name} != b ] || [ -e again ]" for name in "abc"]
    folder, script = job_script(tmp_path, lines)
    for host in ("n0", "n1"):
        subprocess.run(["bash"], input=f"HOSTNAME={host}\n{script}", text=True, cwd=tmp_path)
        (tmp_path / "again").touch()
    assert (tmp_path / "ran").read_text().split() == ["a", "b", "c", "b"]
    began = [line for line in (folder / "task-0.log").read_text().splitlines() if line.startswith("began")]
    assert began == ["began 0 n0", "began 1 n0", "began 2 n0", "began 1 n1"]


@pytest.mark.parametrize(
    ("change", "setup", "ends"),
    [("forgotten", None, (0, "")), ("over", None, (0, "")), ("", "false", (1, "the setup has failed\n"))],
)
def test_a_job_that_was_forgotten_is_over_or_whose_setup_fails_does_nothing(
    change: str, setup: str | None, ends: tuple[int, str], tmp_path: Path
) -> None:
    folder, script = job_script(tmp_path, ["touch ran"], setup)
    if change == "forgotten":
        (folder / "job.json").unlink()
    if change == "over":
        (folder / "over-0").touch()
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == ends
    assert not (tmp_path / "ran").exists()
