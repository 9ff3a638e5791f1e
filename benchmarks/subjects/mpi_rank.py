"""``mpirun -n N python mpi_rank.py PORT SCRIPT``: a rank of Open MPI as torch's ``env://`` expects one."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    port, script = sys.argv[1:3]
    of_mpi = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
    os.environ.update({ours: os.environ[f"OMPI_COMM_WORLD_{theirs}"] for ours, theirs in of_mpi.items()})
    # Trials may run side by side.
    port = str(int(port) + int(os.environ.get("AORTA_TRIAL_INDEX", 0)))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    sys.argv = sys.argv[2:]
    runpy.run_path(script, run_name="__main__")
