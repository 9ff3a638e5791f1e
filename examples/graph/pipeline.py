"""A small pipeline: tokenize a text, train two halves of a bigram model in two slots, evaluate the model.

One tag is missing, and nothing shows it: the values are those of the order in which the tasks happen to run.

    pytest --aorta-graph examples/graph/pipeline.py:graph --aorta-trials 6      # fails, and names the tag
    pytest --aorta-graph examples/graph/pipeline.py:mended --aorta-trials 6     # with the tag: passes
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_aorta.runtime import SlotArgs, Tag, TaskArgs, Worker

TEXT = "the quick brown fox jumps over the lazy dog while the dog dreams of the quick brown fox " * 8
LETTERS = sorted(set(TEXT))


def tokenize(args: SlotArgs) -> None:
    """Write the number of each letter."""
    args.tensors[0].copy_(torch.tensor([LETTERS.index(letter) for letter in TEXT]))


def train(args: SlotArgs) -> float:
    """A few steps of gradient descent on one half of the text, on the common weights."""
    tokens, weights = args.tensors
    half = len(tokens) // 2
    part = tokens[args.scalars[0] * half :][:half]
    model = weights.clone().requires_grad_()
    loss = torch.tensor(0.0)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model[part[:-1]], part[1:])
        (gradient,) = torch.autograd.grad(loss, model)
        model = (model - 5.0 * gradient).detach().requires_grad_()
    weights.copy_(model.detach())
    return float(loss.detach())


def evaluate(args: SlotArgs) -> float:
    """The loss on the whole text."""
    tokens, weights = args.tensors
    return float(torch.nn.functional.cross_entropy(weights[tokens[:-1]], tokens[1:]))


def run(worker: Worker, tag: Tag) -> None:
    """Build and run the graph; ``tag`` is how the parts of the training access the weights."""
    h_tokenize, h_train, h_evaluate = (worker.register(function) for function in (tokenize, train, evaluate))
    tokens: Any = torch.zeros(len(TEXT), dtype=torch.int64)
    weights: Any = torch.zeros(len(LETTERS), len(LETTERS))
    tokens.share_memory_()
    weights.share_memory_()

    def build(orch: Any, args: Any, config: Any) -> None:
        orch.submit_sub(h_tokenize, TaskArgs().add(tokens, Tag.OUTPUT))
        for half in range(2):
            orch.submit_sub(h_train, TaskArgs().add(tokens).add(weights, tag).add_scalar(half))
        orch.submit_sub(h_evaluate, TaskArgs().add(tokens).add(weights))

    worker.run(build)


def graph(worker: Worker) -> None:
    """The second half goes on from what the first has learnt; but an OUTPUT does not say so."""
    run(worker, Tag.OUTPUT)


def mended(worker: Worker) -> None:
    """INOUT does."""
    run(worker, Tag.INOUT)
