"""Overflows planted in a small transformer, one after the other, each with a collector of its own.

Started by ``test_numerics.py`` with the path of ``in_process/numerics.py`` and a folder.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

FILE, FOLDER = sys.argv[1], Path(sys.argv[2])
INF = float("inf")


def load() -> Any:
    spec = importlib.util.spec_from_file_location("numerics", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


numerics = load()


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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(self.between(x), src_mask=self.mask)
        return self.head(x)  # type: ignore[no-any-return]


def run(name: str, *, steps: int = 6, save: bool = False, threshold: float = INF) -> None:
    """Train; what the case plants, it plants in step 4."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net()
    options = {"threshold": threshold, "window": 3, "norms": False, "save": save}
    watch = numerics.InProcess(options, str(FOLDER / name), 0)
    (FOLDER / name).mkdir(parents=True)
    watch.start()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    state = {"step": 0}
    CASES[name](net, state)
    for step in range(1, steps + 1):
        state["step"] = step
        optimizer.zero_grad()
        functional.mse_loss(net(torch.randn(3, 5, 16)), torch.zeros(3, 5, 1)).backward()  # type: ignore[no-untyped-call]
        if "after_backward" in state:
            state["after_backward"]()  # type: ignore[operator]
        optimizer.step()
        watch.step(step)
        if "after_step" in state:
            state["after_step"]()  # type: ignore[operator]
    watch.stop()


def forward(net: Net, state: dict[str, Any]) -> None:
    def plant(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        return with_one(output, INF) if state["step"] == 4 else None

    net.layers[2].linear1.register_forward_hook(plant)


def in_forward(net: Net, state: dict[str, Any]) -> None:
    layer: Any = net.layers[2].linear1
    before = layer.forward
    layer.forward = lambda x: with_one(before(x), INF) if state["step"] == 4 else before(x)


def in_backward(net: Net, state: dict[str, Any]) -> None:
    def plant(module: Any, of_inputs: Any, of_outputs: Any) -> Any:
        return tuple(with_one(each, float("nan")) for each in of_inputs) if state["step"] == 4 else None

    net.layers[1].linear2.register_full_backward_hook(plant)


def code_between(net: Net, state: dict[str, Any]) -> None:
    net.between = lambda x: with_one(x, INF) if state["step"] == 4 else x + 0


def gradient(net: Net, state: dict[str, Any]) -> None:
    weight: Any = net.layers[1].linear2.weight

    def plant() -> None:
        if state["step"] == 4:
            weight.grad[1, 2] = float("nan")

    state["after_backward"] = plant


def update(net: Net, state: dict[str, Any]) -> None:
    """A gradient that is finite, and with the learning rate too large a step."""
    weight: Any = net.layers[3].norm1.weight

    def plant() -> None:
        if state["step"] == 4:
            weight.data.fill_(-3.4e38)
            weight.grad.fill_(3.4e38)

    state["after_backward"] = plant


def parameter(net: Net, state: dict[str, Any]) -> None:
    bias: Any = net.layers[0].linear1.bias

    def plant() -> None:
        if state["step"] == 3:
            bias.data[7] = float("nan")

    state["after_step"] = plant


def alias(net: Net, state: dict[str, Any]) -> None:
    """A view of the output of a module, which autograd does not know, is written to before the next one reads it."""

    def plant(module: Any, inputs: Any, output: torch.Tensor) -> None:
        if state["step"] == 4:
            stale = torch.empty(0)
            stale.set_(output.detach().untyped_storage(), 0, (8,))  # type: ignore[call-overload]
            stale[5] = INF
            state["stale"] = stale

    net.layers[2].norm1.register_forward_hook(plant)


def mask(net: Net, state: dict[str, Any]) -> None:
    net.mask = torch.triu(torch.full((5, 5), -INF), diagonal=1)
    in_forward(net, state)


def clean(net: Net, state: dict[str, Any]) -> None:
    net.mask = torch.triu(torch.full((5, 5), -INF), diagonal=1)


def large(net: Net, state: dict[str, Any]) -> None:
    layer: Any = net.layers[2].linear1
    before = layer.forward
    layer.forward = lambda x: before(x) * (1e6 if state["step"] == 4 else 1)


def scaled(net: Net, state: dict[str, Any]) -> None:
    """A scaler skips the step in which it finds an overflow."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    net.head.register_full_backward_pre_hook(lambda module, grads: (scaler.scale(grads[0]) / 2.0,))
    in_backward(net, state)
    zero = torch.zeros(())

    def after() -> None:
        for each in net.parameters():
            if each.grad is not None:
                each.grad = torch.nan_to_num(each.grad, 0.0, 0.0, 0.0) + zero

    state["after_backward"] = after


def compiled(net: Net, state: dict[str, Any]) -> None:
    net.layers[2] = torch.compile(net.layers[2], backend="eager")
    in_forward(net, state)


CASES = {
    each.__name__: each
    for each in (
        *(forward, in_forward, in_backward, code_between, gradient, update, parameter, alias, mask, clean, large),
        *(scaled, compiled),
    )
}

for case in CASES:
    try:
        run(case, save=case == "in_forward", threshold=1e4 if case == "large" else INF)
    except Exception as error:
        (FOLDER / f"{case}.error").write_text(repr(error))
        print(case, json.dumps(repr(error)), file=sys.stderr)
