"""Hashes of what every step computes, so that two processes that should be equal can be compared. Loaded by path.

In the order of execution, a step has these events: ``initial`` parameters and ``input`` of the outermost module (its
first call), ``forward`` (the output of each module), ``backward`` (the gradient of that output), ``gradient`` and
``parameter`` (of what an optimizer has stepped). ``rank_R.jsonl`` has one line for each step; the names of its events
stand in a line of their own, which all steps with the same events share.

With the option ``at``, a file, the operators that run between two events are recorded as well, with what they read and
write: in the first step whose hashes differ from those of another trial, or in one step that the file names. They are
in ``rank_R.operators.json``, and their tensors in ``rank_R.tensors``.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import sys
import traceback
import weakref
from typing import Any

#: Elements that are hashed at a time; the weights of so many are kept on each device.
_CHUNK = 2**22

#: Bytes of tensors that are kept of the operators of one process.
_KEPT = 64 * 2**20

#: Characters of a hash.
_HASH = 8

#: An odd number, 2**32 divided by the golden ratio (Knuth): the weight of an element is a multiple of it.
_GOLDEN = 0x9E3779B1


class StepRecorder:
    def __init__(self, options: dict[str, Any], folder: str, rank: int | None) -> None:
        self.folder, self.rank = folder, rank or 0
        self.stem = f"process_{os.getpid()}" if rank is None else f"rank_{rank}"
        self.statistics = options.get("mode") == "statistics"
        self.tolerance = float(options.get("tolerance", 0)) if self.statistics else None
        self.at: dict[str, Any] = {}
        if options.get("at"):
            with open(options["at"]) as file:
                self.at = json.load(file)
            if self.at["rank"] != self.rank:
                self.at = {}
        self.reference: list[tuple[list[str], str]] = []
        self.names: dict[int, str] = {}  # of modules, by their identity
        self.parameters: dict[int, str] = {}
        self.roots: list[Any] = []
        self.depth = 0
        self.events: list[str] = []
        self.values: list[Any] = []
        self.counts: dict[str, int] = {}
        self.optimizers: list[Any] = []
        self.shapes: dict[tuple[str, ...], int] = {}
        self.last: tuple[Any, int, Any] | None = None  # the tensor that was hashed last, by reference
        self.weights: dict[Any, Any] = {}
        self.file: Any = None
        self.handles: list[Any] = []
        self.recorder: Any = None
        self.ordinal = self.steps = 0  # lines that are written, and the number of the last step
        self.active = True

    def start(self) -> None:
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        self.torch = torch
        self._seed()
        self.handles = [
            module.register_module_forward_pre_hook(self._guarded(self._before_forward)),
            module.register_module_forward_hook(self._guarded(self._after_forward), always_call=True),
            optimizer.register_optimizer_step_pre_hook(self._guarded(self._before_optimizer)),
        ]
        if self.at:
            if self.at.get("reference"):
                self.reference = read_reference(self.at["reference"])
            # For all steps: a mode that is entered in the middle of a backward is lost with its node.
            self.recorder = _recorder(self)
            self.recorder.__enter__()
            self._begin_recording()

    def step(self, number: int) -> None:
        """All events since the last one belong to the step that has this number."""
        for optimizer in self.optimizers:
            for name, parameter in self._parameters_of(optimizer):
                self._event("parameter", name, parameter)
        self.optimizers = []
        self._write(number)
        self._begin_recording()

    def stop(self) -> None:
        if self.events:
            self._write(self.steps + 1)
        for handle in self.handles:
            handle.remove()
        if self.file is not None:
            self.file.close()

    def _seed(self) -> None:
        """As every other trial of the cell; a workload that is registered has its seeds already."""
        text = os.environ.get("AORTA_TRIAL_SEED", "")
        if not text.isdigit():
            return
        seed = (int(text) + self.rank) % 2**31
        random.seed(seed)
        self.torch.manual_seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)

    def _guarded(self, hook: Any) -> Any:
        """A hook that never raises into the program, and does nothing in traced code and in forks."""
        compiling = self.torch.compiler.is_compiling if hasattr(self.torch, "compiler") else lambda: False

        def guarded(*arguments: Any) -> None:
            if compiling() or not self.active:
                return
            try:
                hook(*arguments)
            except Exception as error:
                self._give_up(error)

        return guarded

    def _give_up(self, error: Exception) -> None:
        self.active = False
        entry = {"error": f"no more hashes: {type(error).__name__}: {error}", "step": self.steps}
        with open(os.path.join(self.folder, f"{self.stem}.problem"), "a") as file:
            file.write(json.dumps({**entry, "traceback": traceback.format_exc()}) + "\n")

    # Events

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if self.depth == 0:
            self._enter_root(module, arguments)
        self.depth += 1
        if self.recorder is not None:
            self.recorder.modules.append(self.names.get(id(module), type(module).__name__))

    def _enter_root(self, module: Any, arguments: Any) -> None:
        if all(root() is not module for root in self.roots):
            prefix = f"{type(module).__name__}." if self.roots else ""
            self.roots.append(weakref.ref(module))
            for name, child in module.named_modules():
                self.names[id(child)] = prefix + name if name else type(module).__name__
            for name, parameter in module.named_parameters():
                self.parameters[id(parameter)] = prefix + name
                self._event("initial", prefix + name, parameter)
            for name, buffer in module.named_buffers():
                self._event("initial", prefix + name, buffer)
        if self.recorder is not None:
            self.recorder.modules.clear()
        self._event("input", self.names[id(module)], arguments)

    def _after_forward(self, module: Any, arguments: Any, output: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.recorder is not None and self.recorder.modules:
            self.recorder.modules.pop()
        name = self.names.get(id(module))
        if name is None:  # added to the model after its first call, or called beside it
            name = type(module).__name__
        self._event("forward", name, output)
        for tensor in self._tensors(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._guarded(lambda gradient, name=name: self._event("backward", name, gradient)))

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        for name, parameter in self._parameters_of(optimizer):
            if parameter.grad is not None:
                self._event("gradient", name, parameter.grad)
        self.optimizers.append(optimizer)

    def _parameters_of(self, optimizer: Any) -> list[tuple[str, Any]]:
        parameters = []
        for group_number, group in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                name = self.parameters.get(id(parameter), f"param_groups[{group_number}][{number}]")
                parameters.append((name, parameter))
        return parameters

    def _event(self, phase: str, name: str, value: Any) -> None:
        tensors = self._tensors(value)
        if not tensors:
            return
        key = f"{phase}:{name}"
        count = self.counts[key] = self.counts.get(key, 0) + 1
        if self.recorder is not None:
            self.recorder.records = False  # hashing is no part of the program
        self.values.append(self._value(tensors))
        self.events.append(key if count == 1 else f"{key}#{count}")
        if self.recorder is not None:
            self.recorder.may_record(self.events[-1], tensors)

    def _tensors(self, value: Any) -> list[Any]:
        if isinstance(value, self.torch.Tensor):
            return [value]
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            return [tensor for each in value for tensor in self._tensors(each)]
        if hasattr(value, "__dataclass_fields__"):
            return self._tensors(list(vars(value).values()))
        return []

    # What a tensor holds, as numbers on its device: they are read once for each step

    def _value(self, tensors: list[Any]) -> Any:
        first = tensors[0]
        if len(tensors) == 1 and self.last is not None and self.last[0]() is first and self.last[1] == _version(first):
            return self.last[2]  # the output of the last child of a container
        of = self._statistics_of if self.statistics else self._hash_of
        if self.torch._C._len_torch_dispatch_stack():
            with self._no_modes():
                value = [of(self._local(tensor)) for tensor in tensors]
        else:
            value = [of(self._local(tensor)) for tensor in tensors]
        if len(tensors) == 1:
            self.last = weakref.ref(first), _version(first), value
        return value

    def _no_modes(self) -> Any:
        from torch.utils._python_dispatch import _disable_current_modes

        return _disable_current_modes()

    def _local(self, tensor: Any) -> Any:
        tensor = getattr(tensor, "_local_tensor", tensor).detach()
        if tensor.layout != self.torch.strided:
            tensor = tensor.to_dense()
        return tensor

    def _hash_of(self, tensor: Any) -> Any:
        """The sum of all 32-bit words, each times an odd number of its place, modulo 2**32: no order goes unseen."""
        torch = self.torch
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        bits = tensor.resolve_neg().contiguous().view(-1)
        size = bits.element_size()
        if (bits.numel() * size) % 4:
            bits = bits.view({1: torch.uint8, 2: torch.int16}[size]).to(torch.int32)
        else:
            if (bits.storage_offset() * size) % 4:
                bits = bits.clone()
            bits = bits.view(torch.int32)
        total: Any = 0
        for chunk in bits.split(_CHUNK) if bits.numel() > _CHUNK else [bits]:
            weights = self._weights(chunk.device)[: chunk.numel()]
            # A sum of integers is the same in every order, whatever the number of threads.
            is_here = chunk.device.type == "cpu"
            sum_of_chunk = int(torch.dot(chunk, weights)) if is_here else (chunk * weights).sum(dtype=torch.int64)
            total = sum_of_chunk + total * 31
        return total

    def _weights(self, device: Any) -> Any:
        if device not in self.weights:
            places = self.torch.arange(1, _CHUNK + 1, dtype=self.torch.int64, device=device)
            self.weights[device] = (places * _GOLDEN | 1).to(self.torch.int32)
        return self.weights[device]

    def _statistics_of(self, tensor: Any) -> Any:
        """The norm, and the largest absolute value."""
        torch = self.torch
        if not tensor.numel():
            return torch.zeros(2, dtype=torch.float64)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.float64)
        norm = torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
        least, most = torch.aminmax(tensor)
        return torch.stack((norm.double(), torch.maximum(most, -least).double()))

    def _write(self, number: int) -> None:
        self.steps = number
        names, values = self.events, self._read(self.values)
        self.events, self.values, self.counts, self.last = [], [], {}, None
        if self.file is None:
            if not names:
                return
            self.file = open(os.path.join(self.folder, f"{self.stem}.jsonl"), "w")  # noqa: SIM115
            self.file.write(json.dumps({"tolerance": self.tolerance}) + "\n")
        shape = self.shapes.get(tuple(names))
        if shape is None:
            shape = self.shapes[tuple(names)] = len(self.shapes)
            self.file.write(json.dumps({"events": names}) + "\n")
        self.file.write(json.dumps({"step": number, "events": shape, "values": values}) + "\n")
        self.file.flush()
        if self.recorder is not None:
            self._end_recording(names, values)
        self.ordinal += 1

    def _read(self, values: list[Any]) -> Any:
        torch = self.torch
        flat = [each for value in values for each in value]
        devices: dict[Any, list[int]] = {}
        for number, each in enumerate(flat):
            if isinstance(each, torch.Tensor):
                devices.setdefault(each.device, []).append(number)
        with self._no_modes():
            for numbers in devices.values():
                read = torch.stack([flat[number] for number in numbers]).tolist()
                for number, each in zip(numbers, read, strict=True):
                    flat[number] = each
        position = 0
        parts_read: list[Any] = []
        for value in values:
            parts, position = flat[position : position + len(value)], position + len(value)
            if self.statistics:
                parts_read.append([_rounded(max(column)) for column in zip(*parts, strict=True)])
            else:
                total = len(parts)
                for part in parts:
                    total = (total * _GOLDEN + part) & 0xFFFFFFFF
                parts_read.append(f"{total:08x}")
        return parts_read if self.statistics else "".join(parts_read)

    # Operators

    def _begin_recording(self) -> None:
        if self.recorder is not None:
            only = self.at.get("ordinal")
            self.recorder.is_on = only in (None, self.ordinal)
            self.recorder.may_record("", [])

    def _end_recording(self, names: list[str], values: str) -> None:
        recorder = self.recorder
        recorder.records = False
        if self.at.get("ordinal") == self.ordinal or self._differs_here(names, values):
            recorder.write(os.path.join(self.folder, self.stem), self.ordinal)
            recorder.is_on, self.recorder = False, None  # the mode stays: others may have been entered inside it
        recorder.clear()

    def _differs_here(self, names: list[str], values: str) -> bool:
        """Whether the event that ends the window is the first one in all steps that differs from the other trial."""
        if self.ordinal >= len(self.reference):
            return False
        others, digests = self.reference[self.ordinal]
        if (names, values) == (others[: len(names)], digests[: len(values)]):
            return False
        self.reference = []  # from here on, all differs
        until = names.index(self.at["until"]) if self.at["until"] in names else len(names)
        end = _HASH * until
        same = (names[:until], values[:end]) == (others[:until], digests[:end])
        here = names[until : until + 1], values[end : end + _HASH]
        return same and here != (others[until : until + 1], digests[end : end + _HASH])


def read_reference(path: str) -> list[tuple[list[str], str]]:
    shapes: list[list[str]] = []
    steps = []
    with open(path) as file:
        for line in file:
            entry = json.loads(line)
            if "step" in entry:
                steps.append((shapes[entry["events"]], entry["values"]))
            elif "events" in entry:
                shapes.append(entry["events"])
    return steps


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # of an inference tensor
        return -1


def _rounded(value: float) -> Any:
    return float(f"{value:.9g}") if value == value and abs(value) != float("inf") else str(value)


def _recorder(owner: StepRecorder) -> Any:
    """What sees each operator between two events: an own mode, as torch's DebugMode keeps no tensors of inputs."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.is_on = self.records = False
            self.modules: list[str] = []
            self.clear()

        def clear(self) -> None:
            self.operators: list[dict[str, Any]] = []
            self.kept: dict[str, tuple[int, int]] = {}
            self.blobs: list[bytes] = []
            self.size = 0

        def may_record(self, event: str, tensors: list[Any]) -> None:
            """Begin after an event, the empty one of the begin of the step included; its tensors are the first ones."""
            self.records = self.is_on and event == owner.at["after"]
            if self.records and tensors:
                with owner._no_modes():
                    outputs = [self._digest(owner._local(tensor)) for tensor in tensors]
                nothing = {"operator": "", "module": "", "node": "", "line": "", "inputs": []}
                self.operators.append({**nothing, "outputs": outputs})

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(each.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for each in types):
                return NotImplemented  # of DTensor and the like: their parts come by again
            kwargs = kwargs or {}
            if not self.records:
                return func(*args, **kwargs)
            name = str(func)
            given = owner._tensors([args, kwargs])
            written = [] if name.startswith("aten.empty") else [self._digest(tensor) for tensor in given]
            result = func(*args, **kwargs)
            made = owner._tensors(result) or self._written(func, args, kwargs)
            # Other threads may be at work on what a collective has not ended yet.
            is_pending = "c10d" in name and "wait" not in name
            self.operators.append(
                {
                    "operator": name,
                    "module": self.modules[-1] if self.modules else "",
                    "node": _node(torch),
                    "line": _line(),
                    "inputs": written,
                    "outputs": [] if is_pending or "aten.empty" in name else [self._digest(each) for each in made],
                }
            )
            return result

        def _written(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
            tensors = []
            for number, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    tensors.append(args[number] if number < len(args) else kwargs.get(argument.name))
            return owner._tensors(tensors)

        def _digest(self, tensor: Any) -> list[Any]:
            """What is known of a tensor: its digest, type and shape."""
            with torch.no_grad():
                plain = tensor.detach()
                if plain.is_complex():
                    plain = torch.view_as_real(plain.resolve_conj())
                plain = plain.resolve_neg().to("cpu").contiguous()
                data = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())
            digest = hashlib.blake2b(data, digest_size=12).hexdigest()
            if digest not in self.kept and self.size + len(data) <= _KEPT:
                self.kept[digest] = self.size, len(data)
                self.blobs.append(data)
                self.size += len(data)
            return [digest, str(plain.dtype).removeprefix("torch."), list(plain.shape)]

        def write(self, stem: str, ordinal: int) -> None:
            with open(f"{stem}.tensors", "wb") as file:
                file.writelines(self.blobs)
            with open(f"{stem}.operators.json", "w") as text:
                json.dump({"ordinal": ordinal, "operators": self.operators, "kept": self.kept}, text)

    return Recorder()


def _node(torch: Any) -> str:
    current = getattr(torch._C, "_current_autograd_node", lambda: None)()
    return "" if current is None else str(current.name())


def _line() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and f"{os.sep}torch{os.sep}" not in file and not file.startswith("<"):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


#: The name that ``start.py`` looks for, see ``collectors.contract``.
InProcess = StepRecorder
