"""After all is done, a thread keeps one rank from ending.

ranks: 3
guilty: 1
status: timeout
kind: timeout
says: rank 1
deadline: 25
elsewhere: auto
"""

import threading

import torch
import torch.distributed as dist


class Uploader(threading.Thread):
    def __init__(self):
        super().__init__()
        self.stopped = threading.Event()

    def run(self):
        self.stopped.wait()


def main():
    dist.init_process_group("gloo")
    uploader = Uploader() if dist.get_rank() == 1 else None
    if uploader is not None:
        uploader.start()
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
