"""Overflows planted in a small transformer, one after the other, each with a collector of its own.

Started by ``test_numerics.py`` with the path of ``in_process/numerics.py`` and a folder.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

FILE, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
INF = float("inf")

sys.path.append(str(FILE.parent))
numerics: Any = importlib.import_module(FILE.stem)


def with_one(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """A copy with one bad element, at index 5."""
    return torch.where(torch.arange(tensor.numel()).view(tensor.shape) == 5, value, tensor)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers: Any = torch.nn.Sequential(
            *(torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(4))
        )
        self.head: Any = torch.nn.Linear(16, 1)
        self.between: Any = lambda x: x
        self.mask: torch.Tensor | None = None
        self.after_backward: Any = lambda: None
        self.after_step: Any = lambda: None
        self.stale: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(self.between(x), src_mask=self.mask)
        return self.head(x)  # type: ignore[no-any-return]


step = 0


def run(case: Callable[[Net], None]) -> None:
    """Train; what the case plants, it plants in step 4."""
    global step
    step = 0
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, folder = Net(), FOLDER / case.__name__
    folder.mkdir(parents=True)
    options = {"threshold": 1e4 if case is large else INF, "window": 3, "norms": False, "save": case is in_forward}
    watch = numerics.InProcess(options, str(folder), 0)
    watch.start()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    case(net)
    for step in range(1, 7):
        optimizer.zero_grad()
        functional.mse_loss(net(torch.randn(3, 5, 16)), torch.zeros(3, 5, 1)).backward()  # type: ignore[no-untyped-call]
        net.after_backward()
        optimizer.step()
        watch.step(step)
        net.after_step()
    watch.stop()


def change_output(layer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    before = layer.forward
    layer.forward = lambda x: change(before(x)) if step == 4 else before(x)


def forward(net: Net) -> None:
    net.layers[2].linear1.register_forward_hook(
        lambda module, inputs, output: with_one(output, INF) if step == 4 else None
    )


def in_forward(net: Net) -> None:
    change_output(net.layers[2].linear1, lambda output: with_one(output, INF))


def in_backward(net: Net) -> None:
    def plant(module: Any, of_inputs: Any, of_outputs: Any) -> Any:
        return tuple(with_one(each, float("nan")) for each in of_inputs) if step == 4 else None

    net.layers[1].linear2.register_full_backward_hook(plant)


def code_between(net: Net) -> None:
    net.between = lambda x: with_one(x, INF) if step == 4 else x + 0


def gradient(net: Net) -> None:
    def plant() -> None:
        if step == 4:
            net.layers[1].linear2.weight.grad[1, 2] = float("nan")

    net.after_backward = plant


def update(net: Net) -> None:
    """A gradient that is finite, and with the learning rate too large a step."""
    weight = net.layers[3].norm1.weight

    def plant() -> None:
        if step == 4:
            weight.data.fill_(-3.4e38)
            weight.grad.fill_(3.4e38)

    net.after_backward = plant


def parameter(net: Net) -> None:
    def plant() -> None:
        if step == 3:
            net.layers[0].linear1.bias.data[7] = float("nan")

    net.after_step = plant


def alias(net: Net) -> None:
    """A view of the output of a module, which autograd does not know, is written to before the next one reads it."""

    def plant(module: Any, inputs: Any, output: torch.Tensor) -> None:
        if step == 4:
            net.stale = torch.empty(0)
            net.stale.set_(output.detach().untyped_storage(), 0, (8,))
            net.stale[5] = INF

    net.layers[2].norm1.register_forward_hook(plant)


def mask(net: Net) -> None:
    clean(net)
    in_forward(net)


def clean(net: Net) -> None:
    net.mask = torch.triu(torch.full((5, 5), -INF), diagonal=1)


def large(net: Net) -> None:
    change_output(net.layers[2].linear1, lambda output: output * 1e6)


def scaled(net: Net) -> None:
    """A scaler skips the step in which it finds an overflow."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    net.head.register_full_backward_pre_hook(lambda module, grads: (scaler.scale(grads[0]) / 2.0,))
    in_backward(net)
    zero = torch.zeros(())

    def after() -> None:
        for each in net.parameters():
            if each.grad is not None:
                each.grad = torch.nan_to_num(each.grad, 0.0, 0.0, 0.0) + zero

    net.after_backward = after


def compiled(net: Net) -> None:
    net.layers[2] = torch.compile(net.layers[2], backend="eager")
    in_forward(net)


for each in (forward, in_forward, in_backward, code_between, gradient, update, parameter, alias, mask, clean, large):
    run(each)
run(scaled)
run(compiled)
