"""In each rank: looks at the tensors of modules, gradients and parameters, in the order of execution, for a bad one.

Tensors of the CPU are looked at as they come; on a device, absolute maxima are kept there and read once per step.
Loaded by its path, perhaps in another interpreter than pytest's: no imports from this package.
"""

from __future__ import annotations

import collections
import gc
import importlib
import json
import math
import os
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)

#: Rows of the statistics that are kept; tensors beside a bad one that are named.
_ROWS, _NAMED = 2000, 5

#: Seconds between two times that a rank without a bad tensor tells what it has seen: it may be killed.
_INTERVAL = 5.0

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


class Seen:
    """A tensor of this step: who gave it, who took it, and what was found as it was made."""

    def __init__(self, tensor: Any) -> None:
        self.ref = weakref.ref(tensor)
        self.maker = ""
        self.takers: list[tuple[str, int]] = []
        self.outputs: list[list[Seen]] = []  # of the takers
        self.value: float | None = None
        self.version = _version(tensor)
        self.grad_value: float | None = None
        self.is_hooked = False


class ModuleCall:
    """A running module, its input tensors and its output tensors."""

    def __init__(self, name: str, given: list[Any]) -> None:
        self.name, self.given = name, given
        self.outputs: list[Seen] = []


class NumericsHooks:
    active = True

    def __init__(self, options: dict[str, Any], folder: str, rank: int | None) -> None:
        self.threshold = float(options["threshold"])
        self.window, self.norms, self.save = options["window"], options["norms"], options["save"]
        self.stem = os.path.join(folder, f"process_{os.getpid()}" if rank is None else f"rank_{rank}")
        self.number = 0  # of steps that are done
        self.found: dict[str, Any] | None = None
        self.has_said = False
        self.hooks: list[Any] = []
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.roots = 0
        self.parameters: dict[int, tuple[Any, str]] = {}
        self.followed: dict[int, Any] = {}  # whose gradients are looked at before they are reduced
        self.stack: list[ModuleCall] = []
        self.last_given = ""
        self.tensors: dict[int, Seen] = {}
        self.pending: list[tuple[Any, dict[str, Any], Any]] = []
        self.rows: dict[str, collections.deque[tuple[int, float, float | None]]] = {}
        self.looks = 0  # of this step, which all ranks count alike
        self.is_scaled = False
        self.scaled_steps: list[int] = []
        self.written = time.monotonic()

    def start(self) -> None:
        warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
        modules, optimizers = torch.nn.modules.module, importlib.import_module("torch.optim.optimizer")
        self.hooks = [
            modules.register_module_forward_pre_hook(self._guarded(self._enter)),
            modules.register_module_forward_hook(self._guarded(self._leave), with_kwargs=True, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._guarded(self._before_update)),
            optimizers.register_optimizer_step_post_hook(self._guarded(self._after_update)),
        ]
        self._watch_scaler()

    def step(self, number: int) -> None:
        self._settle()
        self.number, self.last_given = number, ""
        self.tensors.clear()
        self.looks, self.is_scaled = 0, False
        if self.has_said:
            self._unhook()
        elif time.monotonic() - self.written > _INTERVAL:
            self._write()

    def _unhook(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def stop(self) -> None:
        if self.found is None:
            self._settle()
        self._unhook()
        if (self.rows or self.number) and not self.has_said:
            self._write()

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """A hook that does nothing where it must not, and never raises."""

        # What is compiled is seen at its edges only: a look into it would change what is compiled. The compiler reads
        # the next lines, and finds no module by the name of this file: no names of it before they return.
        is_compiling = torch.compiler.is_compiling

        def hook(*arguments: Any) -> None:
            if is_compiling():
                return
            if not self.active or self.has_said:
                return
            try:
                function(*arguments)  # all that it computes, it computes of detached tensors
            except Exception:
                self.active = False
                entry = {"error": traceback.format_exc(limit=-1).strip(), "step": self.number + 1}
                with open(self.stem + ".problem", "a") as file:
                    file.write(json.dumps(entry) + "\n")

        return torch.utils.hooks.unserializable_hook(hook)  # type: ignore[no-any-return, no-untyped-call]

    # Modules

    def _enter(self, module: Any, inputs: Any) -> None:
        name = self.names.get(module)
        if name is None:
            self._name(module)
            name = self.names.get(module, type(module).__name__)
        call = ModuleCall(name, _tensors(inputs))
        self.stack.append(call)
        self._note_taken(call, call.given)
        if module._forward_hooks:  # they run after this collector's, and may give something else
            handle: Any = None
            look = self._guarded(self._look_behind_hooks)

            def last(*arguments: Any) -> None:
                handle.remove()
                look(call, *arguments)

            handle = module.register_forward_hook(last, always_call=True)

    def _note_taken(self, call: ModuleCall, tensors: list[Any]) -> None:
        for position, tensor in enumerate(tensors):
            seen = self._seen(tensor)
            seen.takers.append((call.name, position))
            seen.outputs.append(call.outputs)
            self._follow_gradient(tensor, seen)

    def _look_behind_hooks(self, call: ModuleCall, module: Any, inputs: Any, output: Any) -> None:
        place = {"phase": "forward", "module": call.name, "by_hook": True}
        for position, tensor in enumerate(_tensors(output)):
            if not any(seen.ref() is tensor for seen in call.outputs):
                self._look_at_output(tensor, position, place, call, (module, inputs, {}))

    def _name(self, root: Any) -> None:
        """Names as ``named_modules()`` of the model gives them, whatever it is wrapped in."""
        model = root.module if type(root).__name__ in ("DistributedDataParallel", "DataParallel") else root
        is_small = next(model.children(), None) is None
        first = f"{type(model).__name__}:" if self.roots and not is_small else ""
        self.roots += not is_small
        for name, module in model.named_modules():
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            self.names.setdefault(module, first + name if name else type(model).__name__)
        if model is not root:
            self.names.setdefault(root, type(root).__name__)
        for name, parameter in model.named_parameters():
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            self.parameters.setdefault(id(parameter), (weakref.ref(parameter), first + name))

    def _leave(self, module: Any, inputs: Any, *rest: Any) -> None:
        named, output = rest if len(rest) == 2 else ({}, rest[0])  # without them where it has raised
        if not self.stack:
            return
        call = self.stack.pop()
        name = call.name
        self._note_taken(call, _tensors(named))
        place = {"phase": "forward", "module": name}
        for position, tensor in enumerate(_tensors(output)):
            self._look_at_output(tensor, position, place, call, (module, inputs, named))
        self.last_given = name
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad and not hasattr(parameter, "_local_tensor"):
                self._follow_parameter(parameter, name, key)

    def _look_at_output(self, tensor: Any, position: int, place: dict[str, Any], call: ModuleCall, given: Any) -> None:
        seen = self._seen(tensor)
        call.outputs.append(seen)
        version = _version(tensor)
        if seen.maker and seen.version == version:
            return  # of a module inside
        seen.maker, seen.version = call.name, version
        what = "output" if position == 0 else f"output {position}"
        self._look(tensor, {**place, "what": what}, seen, given)
        self._follow_gradient(tensor, seen)

    def _seen(self, tensor: Any) -> Seen:
        seen = self.tensors.get(id(tensor))
        if seen is None or seen.ref() is not tensor:
            seen = self.tensors[id(tensor)] = Seen(tensor)
        return seen

    # Gradients

    def _follow_gradient(self, tensor: Any, seen: Seen) -> None:
        if seen.is_hooked or not tensor.requires_grad or tensor.is_leaf:
            return
        seen.is_hooked = True
        tensor.register_hook(self._guarded(lambda gradient: self._gradient(gradient, seen)))

    def _gradient(self, gradient: Any, seen: Seen) -> None:
        if seen.takers:
            name, position = max(seen.takers, key=_depth)
            place = {"module": name, "what": f"gradient of input {position}"}
        else:
            place = {"module": seen.maker, "what": "gradient of output"}
        self._look(_bare(gradient), {"phase": "backward", **place}, seen)

    def _follow_parameter(self, parameter: Any, module: str, key: str) -> None:
        known = self.followed.get(id(parameter))
        if known is not None and known() is parameter:
            return
        self.followed[id(parameter)] = weakref.ref(parameter)

        def look(gradient: Any) -> None:
            self._look(_bare(gradient), {"phase": "backward", "module": module, "what": f"gradient of {key}"}, None)

        parameter.register_hook(self._guarded(look))

    def _watch_scaler(self) -> None:
        """What a scaled loss overflows is looked for and skipped by its scaler."""
        scaler: Any = torch.amp.GradScaler
        scale = scaler.scale

        def noted(this: Any, outputs: Any) -> Any:
            self.is_scaled = self.is_scaled or this.is_enabled()
            return scale(this, outputs)

        scaler.scale = noted

    # The update

    def _before_update(self, optimizer: Any, arguments: Any, given: Any) -> None:
        gradients = [
            (name, each.grad.detach()) for name, each in self._parameters_of(optimizer) if each.grad is not None
        ]
        self._look_at_all(gradients, {"phase": "gradients", "what": "gradient"})

    def _after_update(self, optimizer: Any, arguments: Any, given: Any) -> None:
        parameters = [(name, each.detach()) for name, each in self._parameters_of(optimizer)]
        self._look_at_all(parameters, {"phase": "optimizer", "what": "parameter"})

    def _look_at_all(self, named: list[tuple[str, Any]], place: dict[str, Any]) -> None:
        """One by one only where not all of them are fine: there are many, and most are small."""
        tensors = [_bare(tensor) for _, tensor in named]
        are_usual = all(it.is_cpu and it.dtype in _DTYPES and it.layout is torch.strided for it in tensors)
        if are_usual and math.isinf(self.threshold):
            norms = torch._foreach_norm(tensors) if tensors else ()
            if all(math.isfinite(norm.item()) for norm in norms):
                return
        for (name, _), tensor in zip(named, tensors, strict=True):
            self._look(tensor, {**place, "module": name}, None)

    def _parameters_of(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        for group, each in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(each["params"]):
                ref, name = self.parameters.get(id(parameter), (lambda: None, ""))
                yield name if ref() is parameter else f"parameter {number} of group {group}", parameter

    # Looks

    def _look(self, tensor: Any, place: dict[str, Any], seen: Seen | None, call: Any = None) -> None:
        if tensor.dtype not in _DTYPES or tensor.layout is not torch.strided or tensor.numel() == 0:
            return
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        if plain.is_cpu:
            low, high = torch.aminmax(plain)
            value, norm = max(-low.item(), high.item()), plain.norm().item() if self.norms else None
            del plain  # it would be taken for an alias
            self._take(value, norm, tensor, place, seen, call)
        else:
            highest = torch.linalg.vector_norm(plain, math.inf, dtype=torch.float32)
            self.pending.append((highest, {**place, **_look_of(tensor)}, (weakref.ref(tensor), seen, tensor._version)))
            if self.save:
                self._settle(call)

    def _take(
        self, value: float, norm: float | None, tensor: Any, place: dict[str, Any], seen: Seen | None, call: Any
    ) -> None:
        """What was found in a tensor, in the order of execution; ``tensor`` is ``None`` where it is gone."""
        self.looks += 1
        in_gradient = place["phase"] in ("backward", "gradients")
        if seen is not None and in_gradient:
            seen.grad_value = value
        elif seen is not None:
            seen.value = value
        key = f"{place['phase']}|{place['module']}|{place['what']}"
        row = self.rows.get(key)
        if row is None and len(self.rows) < _ROWS:
            row = self.rows[key] = collections.deque(maxlen=self.window + 1)
        if row is not None:
            row.append((self.number + 1, value, norm))
        if not self._is_bad(value) or self.found is not None:
            return
        if in_gradient and self.is_scaled:
            if self.scaled_steps[-1:] != [self.number + 1]:
                self.scaled_steps.append(self.number + 1)
            return
        self.found = {**place, "step": self.number + 1, "at": time.time(), "value": value}
        self.found["number"] = self.looks
        self.found |= {"window": [entry[:3] for entry in row or []][:-1]}
        self.found["after"] = self.last_given
        if tensor is not None:
            self.found |= {**_look_of(tensor), **self._elements(tensor), **self._storage(tensor)}
        self.found |= self._producer(place, seen, call)
        if self.save and call is not None:
            self.found["saved"] = self._save(tensor, call)
        self._write()

    def _is_bad(self, value: float | None) -> bool:
        return value is not None and not (math.isfinite(value) and value <= self.threshold)

    def _settle(self, call: Any = None) -> None:
        """Read what has been kept on devices since the last time: one synchronization for each device."""
        pending, self.pending = self.pending, []
        by_device: dict[Any, list[int]] = {}
        for index, (highest, _, _) in enumerate(pending):
            by_device.setdefault(highest.device, []).append(index)
        values: dict[int, float] = {}
        for indexes in by_device.values():
            values |= dict(zip(indexes, torch.stack([pending[index][0] for index in indexes]).tolist(), strict=True))
        for index, (_, place, (ref, seen, version)) in enumerate(pending):
            tensor = ref()
            unchanged = tensor is not None and tensor._version == version
            self._take(values[index], None, tensor if unchanged else None, place, seen, call)

    # Details of the first bad tensor

    def _elements(self, tensor: Any) -> dict[str, Any]:
        flat = tensor.detach().reshape(-1)
        bad = ~torch.isfinite(flat)
        if not math.isinf(self.threshold):
            bad |= flat.abs() > self.threshold
        first = int(bad.to(torch.uint8).argmax())
        index = [int(each) for each in torch.unravel_index(torch.tensor(first), tensor.shape)] if tensor.dim() else []
        element = flat[first].item()
        return {"bad": int(bad.sum()), "nan": int(flat.isnan().sum()), "first": index, "element": str(element)}

    def _storage(self, tensor: Any) -> dict[str, Any]:
        """Where it lies, and which other tensors that live lie there."""
        start, size = tensor.data_ptr(), _extent(tensor)
        storage = tensor.untyped_storage()
        names: list[str] = []
        own = {id(tensor), id(tensor._base)}
        for other in gc.get_objects():
            if not issubclass(type(other), torch.Tensor) or id(other) in own:
                continue
            try:
                where = other.data_ptr()
                if where < start + size and start < where + _extent(other) and not _is_view(tensor, other):
                    names.append(self._called(other))
            except Exception:  # one without a storage
                continue
        return {
            "address": start,
            "storage": {"address": storage.data_ptr(), "bytes": storage.nbytes(), "offset": start - storage.data_ptr()},
            "alias_of": sorted(set(names))[:_NAMED],
        }

    def _called(self, tensor: Any) -> str:
        ref, name = self.parameters.get(id(tensor), (lambda: None, ""))
        if ref() is tensor:
            return f"parameter {name}"
        for module, name in list(self.names.items()):
            for key, buffer in module._buffers.items():
                if buffer is tensor:
                    return f"buffer {name}.{key}"
        seen = self.tensors.get(id(tensor))
        if seen is not None and seen.ref() is tensor and seen.maker:
            return f"output of {seen.maker}"
        # From Python 3.13 on, an object can hold its attributes without a dictionary.
        held = [each if isinstance(each, dict) else getattr(each, "__dict__", {}) for each in gc.get_referrers(tensor)]
        names = [
            key for owner in held for key, value in list(owner.items()) if value is tensor and isinstance(key, str)
        ]
        return f"{names[0] if names else 'a tensor'} {tuple(tensor.shape)}"

    def _producer(self, place: dict[str, Any], seen: Seen | None, call: Any) -> dict[str, Any]:
        if place["phase"] == "forward":
            return self._forward_producer(place["module"], call)
        if place["phase"] == "backward" and seen is not None:
            # Those that were given finite gradients for what they gave.
            makers = [
                taker
                for taker, outputs in zip(seen.takers, seen.outputs, strict=True)
                if not any(self._is_bad(output.grad_value) for output in outputs)
                and any(output.grad_value is not None for output in outputs)
            ]
            if not makers:
                return {"inputs_finite": False}
            name, position = max(makers, key=_depth)
            return {"module": name, "what": f"gradient of input {position}", "inputs_finite": True}
        if place["phase"] == "gradients":
            # Those before the reduction were looked at one by one, and the first bad one would have been found there.
            dist = torch.distributed
            is_group = dist.is_available() and dist.is_initialized()
            return {"inputs_finite": True, "reduced": is_group and dist.get_world_size() > 1}
        return {"inputs_finite": True}

    def _forward_producer(self, name: str, call: Any) -> dict[str, Any]:
        if call is None:  # on a device, when the step is over: those that modules gave are known
            takers = [seen for seen in self.tensors.values() if name in (taker for taker, _ in seen.takers)]
            known = [seen for seen in takers if seen.value is not None]
            return {"inputs_finite": not any(self._is_bad(seen.value) for seen in known) if known else None}
        module, inputs, named = call
        facts: dict[str, Any] = {"inputs_finite": True}
        for position, tensor in enumerate([*_tensors(inputs), *_tensors(named)]):
            if tensor.dtype not in _DTYPES or not self._has_bad(tensor) or _is_mask(tensor):
                continue
            facts["inputs_finite"], seen = False, self._seen(tensor)
            facts["input"] = {"position": position, "made_by": seen.maker, **self._elements(tensor)}
            # The innermost module that runs, and was not given the tensor itself.
            around = [call.name for call in self.stack if not any(each is tensor for each in call.given)]
            facts["inside"] = around[-1] if around else "the program"
            if seen.maker and seen.value is not None and not self._is_bad(seen.value):
                facts["overwritten"] = {"made_by": seen.maker, "in_place": seen.version != _version(tensor)}
                facts |= self._storage(tensor)
            break
        own = [*module._parameters.items(), *module._buffers.items()]
        bad = [key for key, tensor in own if tensor is not None and self._has_bad(_bare(tensor.detach()))]
        if bad:
            facts["bad_parameters"] = bad
        return facts

    def _has_bad(self, tensor: Any) -> bool:
        if tensor.dtype not in _DTYPES or tensor.numel() == 0:
            return False
        plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return self._is_bad(torch.linalg.vector_norm(plain.detach().float(), math.inf).item())

    # Files

    def _write(self) -> None:
        rows = [
            {"phase": phase, "module": module, "what": what, "values": list(row)}
            for (phase, module, what), row in ((tuple(key.split("|", 2)), row) for key, row in self.rows.items())
        ]
        told = {
            "found": self.found,
            "steps": self.number,
            "scaled_steps": self.scaled_steps[:20],
            "compiled": any(type(module).__name__ == "OptimizedModule" for module in self.names),
            "rows": rows,
        }
        with open(self.stem + ".json.new", "w") as file:
            json.dump(told, file)
        os.replace(self.stem + ".json.new", self.stem + ".json")
        self.written = time.monotonic()
        if self.found is not None:
            self.has_said = True
            self.tensors.clear()
            self.pending.clear()

    def _save(self, tensor: Any, call: Any) -> str:
        """The bad tensor and what the module was given, with a script that runs the module alone."""
        module, inputs, named = call
        path = self.stem + ".saved"
        state = {key: _bare(value.detach()) for key, value in module.state_dict(keep_vars=True).items()}
        saved = {"output": tensor, "inputs": inputs, "named": named, "state": state, "module": None}
        try:
            torch.save({**saved, "module": module}, path + ".pt")
        except Exception:  # a module that cannot be pickled
            torch.save(saved, path + ".pt")
        with open(path + ".py", "w") as file:
            file.write(_SCRIPT.format(file=os.path.basename(path) + ".pt", folder=os.getcwd(), module=type(module)))
        return path


_SCRIPT = '''"""Runs the module whose output was bad, with the inputs that it had. {module}"""

import os
import sys

import torch

sys.path.insert(0, {folder!r})  # where the classes of the program are
saved = torch.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r}), weights_only=False)
module = saved["module"]
if module is None:
    sys.exit("the module could not be saved: build it here, and load saved['state'] into it")
output = module(*saved["inputs"], **saved["named"])
for name, tensor in (("then", saved["output"]), ("now", output)):
    if torch.is_tensor(tensor):
        bad = int((~torch.isfinite(tensor)).sum())
        print(f"{{name}}: {{tuple(tensor.shape)}} {{tensor.dtype}}, {{bad}} not finite")
'''


def _tensors(value: Any, depth: int = 4) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [_bare(value)]
    if depth and isinstance(value, (list, tuple, dict)):
        values = value.values() if isinstance(value, dict) else value
        return [tensor for each in values for tensor in _tensors(each, depth - 1)]
    return []


def _depth(taker: tuple[str, int]) -> int:
    return taker[0].count(".") + bool(taker[0])


def _bare(tensor: Any) -> Any:
    """Of a tensor that is spread over ranks, the part of this one."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def _look_of(tensor: Any) -> dict[str, Any]:
    device, dtype = str(tensor.device), str(tensor.dtype).removeprefix("torch.")
    return {"shape": list(tensor.shape), "dtype": dtype, "device": device, "elements": tensor.numel()}


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _extent(tensor: Any) -> int:
    """Bytes from its first to its last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _is_view(tensor: Any, other: Any) -> bool:
    """Whether autograd knows that these are one; a write to one is seen by the version of the other."""
    one, two = tensor._base, other._base
    return tensor is two or other is one or (one is not None and one is two)


def _is_mask(tensor: Any) -> bool:
    """Whether all that is not finite is a mask's minus infinity."""
    return not tensor.requires_grad and bool((torch.isfinite(tensor) | (tensor == -math.inf)).all())


#: The name that ``start.py`` looks for, see ``collectors.contract``.
InProcess = NumericsHooks
