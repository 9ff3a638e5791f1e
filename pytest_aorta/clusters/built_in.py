"""Clusters and launchers that need no configuration; the clusters are those that Row has."""

from __future__ import annotations

CLUSTERS = """
# OLCF Andes
[[cluster]]
name = "andes"
identify.by_environment = ["LMOD_SYSTEM_NAME", "andes"]
scheduler = "slurm"
[[cluster.partition]]
name = "batch"
maximum_gpus_per_job = 0
warn_cpus_not_multiple_of = 32
cpus_per_node = 32

# Purdue Anvil
[[cluster]]
name = "anvil"
identify.by_environment = ["RCAC_CLUSTER", "anvil"]
scheduler = "slurm"
partition = [
    {name = "shared", maximum_cpus_per_job = 127, maximum_gpus_per_job = 0},
    {name = "wholenode", require_cpus_multiple_of = 128, maximum_gpus_per_job = 0},
    {name = "gpu", minimum_gpus_per_job = 1, gpus_per_node = 4},
    {name = "wide", require_cpus_multiple_of = 128, maximum_gpus_per_job = 0, prevent_auto_select = true},
    {name = "highmem", maximum_gpus_per_job = 0, prevent_auto_select = true},
    {name = "debug", maximum_gpus_per_job = 0, prevent_auto_select = true},
    {name = "gpu-debug", minimum_gpus_per_job = 1, prevent_auto_select = true},
]

# NCSA Delta
[[cluster]]
name = "delta"
identify.by_environment = ["LMOD_SYSTEM_NAME", "Delta"]
scheduler = "slurm"
submit_options = ['--constraint="scratch"']
[[cluster.partition]]
name = "cpu"
maximum_gpus_per_job = 0
cpus_per_node = 128
memory_per_cpu = "1970M"
account_suffix = "-cpu"
[[cluster.partition]]
name = "gpuA100x4"
minimum_gpus_per_job = 1
memory_per_gpu = "62200M"
gpus_per_node = 4
account_suffix = "-gpu"
[[cluster.partition]]
name = "gpuA100x8"
minimum_gpus_per_job = 1
memory_per_gpu = "256000M"
gpus_per_node = 8
account_suffix = "-gpu"
prevent_auto_select = true
[[cluster.partition]]
name = "gpuA40x4"
minimum_gpus_per_job = 1
memory_per_gpu = "62200M"
gpus_per_node = 4
account_suffix = "-gpu"
prevent_auto_select = true
[[cluster.partition]]
name = "gpuMI100x8"
minimum_gpus_per_job = 1
memory_per_gpu = "256000M"
gpus_per_node = 8
account_suffix = "-gpu"
prevent_auto_select = true

# OLCF Frontier
[[cluster]]
name = "frontier"
identify.by_environment = ["LMOD_SYSTEM_NAME", "frontier"]
scheduler = "slurm"
submit_options = ['--constraint="nvme"']
[[cluster.partition]]
name = "batch"
warn_gpus_not_multiple_of = 8
gpus_per_node = 8

# Great Lakes of the University of Michigan; its partition gpu has nodes of several kinds
[[cluster]]
name = "greatlakes"
identify.by_environment = ["CLUSTER_NAME", "greatlakes"]
scheduler = "slurm"
[[cluster.partition]]
name = "standard"
maximum_gpus_per_job = 0
cpus_per_node = 36
memory_per_cpu = "5G"
[[cluster.partition]]
name = "gpu_mig40,gpu"
minimum_gpus_per_job = 1
maximum_gpus_per_job = 1
memory_per_gpu = "60G"
[[cluster.partition]]
name = "gpu"
minimum_gpus_per_job = 1
memory_per_gpu = "60G"
[[cluster.partition]]
name = "gpu_mig40"
minimum_gpus_per_job = 1
memory_per_gpu = "125G"
prevent_auto_select = true
[[cluster.partition]]
name = "spgpu"
minimum_gpus_per_job = 1
memory_per_gpu = "47000M"
prevent_auto_select = true
[[cluster.partition]]
name = "largemem"
maximum_gpus_per_job = 0
prevent_auto_select = true
[[cluster.partition]]
name = "standard-oc"
maximum_gpus_per_job = 0
cpus_per_node = 36
memory_per_cpu = "5G"
prevent_auto_select = true
[[cluster.partition]]
name = "debug"
maximum_gpus_per_job = 0
cpus_per_node = 36
memory_per_cpu = "5G"
prevent_auto_select = true

# Any SLURM, asked for by name; its default partition.
[[cluster]]
name = "slurm"
identify.always = false
scheduler = "slurm"

# This host.
[[cluster]]
name = "none"
identify.always = true
scheduler = "bash"
[[cluster.partition]]
name = "none"
"""

LAUNCHERS = """
[openmp.default]
threads_per_process = "OMP_NUM_THREADS="

[mpi.default]
executable = "srun"
processes = "--ntasks="
threads_per_process = "--cpus-per-task="
gpus_per_process = "--tres-per-task=gres/gpu:"

[mpi.anvil]
executable = "srun --mpi=pmi2"
processes = "--ntasks="
threads_per_process = "--cpus-per-task="
gpus_per_process = "--tres-per-task=gres/gpu:"

[mpi.none]
executable = "mpirun"
processes = "-n "

[srun.default]
executable = "srun"
processes = "--ntasks="
threads_per_process = "--cpus-per-task="
gpus_per_process = "--gpus-per-task="

[torchrun.default]
executable = "torchrun"
processes = "--nproc-per-node="
"""
