"""A hook for uncaught exceptions writes a line of JSON and ends the process at once.

ranks: 3
guilty: 2
status: workload_failed
kind: exception, exit_code
says: vocabulary has 0 entries
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def report(kind, value, traceback):
    line = {
        "time": time.time(),
        "level": "fatal",
        "rank": os.environ["RANK"],
        "error": kind.__name__,
        "msg": str(value),
    }
    print(json.dumps(line), file=sys.stderr, flush=True)
    os._exit(1)


def main():
    sys.excepthook = report
    dist.init_process_group("gloo")
    for step in range(6):
        vocabulary = {} if dist.get_rank() == 2 and step == 4 else {"a": 1}
        if not vocabulary:
            raise RuntimeError("vocabulary has 0 entries")
        dist.all_reduce(torch.ones(len(vocabulary)))
    dist.destroy_process_group()


main()
