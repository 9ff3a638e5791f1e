"""After pytorch/examples `imagenet/main.py`: it starts a process for each device itself; meters in its lines."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

parser = argparse.ArgumentParser()
parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456")
parser.add_argument("--world-size", default=2, type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")
parser.add_argument("--fault", default="")


def main():
    args = parser.parse_args()
    if args.multiprocessing_distributed:
        mp.spawn(main_worker, nprocs=args.world_size, args=(args.world_size, args))
    else:
        main_worker(0, 1, args)


def main_worker(gpu, ngpus, args):
    dist.init_process_group("gloo", init_method=args.dist_url, world_size=ngpus, rank=gpu)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(4):
        end = time.time()
        if i == 2 and gpu == ngpus - 1:
            go_wrong(args.fault)
        loss = torch.nn.functional.cross_entropy(model(torch.ones(2, 8)), torch.tensor([1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [0][{i + 1:5d}/4]\tTime {time.time() - end:6.3f} ( 0.1)\tLoss {loss.item():.4e} ( 1.4e+00)")


def go_wrong(fault):
    if fault == "image":
        raise OSError("cannot identify image file 'n01440764_190.JPEG'")
    if fault == "hang":
        time.sleep(1000)


if __name__ == "__main__":
    main()
