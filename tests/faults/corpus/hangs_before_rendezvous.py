"""One rank downloads a model before it joins, and the download hangs; the others give up.

ranks: 3
guilty: 2
status: workload_failed, infrastructure_failed, timeout
kind: exception, timeout
says: rank 2
deadline: 45
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist


def download():
    here, there = socket.socketpair()
    there.sendall(b"HTTP/1.1 200 OK\r\n")
    data = b""
    while chunk := here.recv(1 << 16):  # the rest never comes
        data += chunk
    return data


def main():
    if os.environ["RANK"] == "2":
        download()
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
