"""The object store of one rank resets its connection, in nearly the words of a lost peer.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: bucket-7.store.example
"""

import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, host):
        self.host = host

    def get(self, key):
        if key == "part-4" and dist.get_rank() == 1:
            raise ConnectionResetError(104, f"Connection reset by peer: {self.host}/{key}")
        return torch.ones(16)


def main():
    dist.init_process_group("gloo")
    bucket = Bucket("bucket-7.store.example")
    for index in range(8):
        part = bucket.get(f"part-{index}")
        dist.all_reduce(part)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
