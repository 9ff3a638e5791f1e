"""After pytorch/examples `distributed/tensor_parallelism`: without devices it leaves with 0."""

import sys

import torch


def verify_min_gpu_count(min_gpus=2):
    return torch.cuda.is_available() and torch.cuda.device_count() >= min_gpus


if not verify_min_gpu_count():
    print("Unable to locate sufficient 2 gpus to run this example. Exiting.")
    sys.exit()
