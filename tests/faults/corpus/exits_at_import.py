"""A licence check at import ends one rank with an exit code and a line on stderr.

ranks: 3
guilty: 1
status: workload_failed, infrastructure_failed
kind: exit_code, exception
says: code 4 | no licence
"""

import os
import sys

if os.environ.get("RANK") == "1":
    print("vendor_kernels: no licence for this host", file=sys.stderr)
    sys.exit(4)

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
