"""Networks on PyTorch: one ``torch.fx`` module per form, autograd for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx

from meta500.backends.checks import check_cotangent
from meta500.backends.network import GRADIENT_PREFIX, Network, NodeCoverage
from meta500.backends.numpy.operators.seeding import restore_streams, stream_states
from meta500.backends.torch.ambient import Ambient, parse_device
from meta500.backends.torch.compilation import before_compiling
from meta500.backends.torch.host import HostOperation
from meta500.backends.torch.tensors import (
    attribute_name,
    from_numpy,
    has_dtype,
    host_array,
    native_tensor,
    torch_dtype,
)
from meta500.backends.torch.visitor import Emitter, TorchVisitor, failing_node, node_coverage
from meta500.backends.values import apply, leaves
from meta500.errors import UserError, choose
from meta500.graph import Model, Operation, TensorType, ValueType
from meta500.graph.model import captured_names, operations_for
from meta500.graph.passes import training_form

MODES = ("eager", "compile")
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
# Runs a training pass for the network: (function, names of its results, *its arguments) -> its results.
Surrounding = Callable[..., tuple[Any, ...]]
_GENERATOR = "generator"
# Results up to this many elements are copied without a look at who else holds them.
_SMALL = 64
# Relative to the largest element; far above rounding, far below the faults that are looked for.
_COMPILED_TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 3e-2,
    torch.float16: 2e-1,
    torch.bfloat16: 3e-1,
}


class TorchNetwork(Network):
    """A network run by PyTorch; see :class:`meta500.backends.network.Network`.

    Args:
        model: the network.
        device: "cpu", "cuda" or "cuda:N".
        mode: "eager", or "compile" for torch.compile (inductor); the first run then compiles, and the first
            backward run with each combination of input shapes is checked against eager PyTorch.
        compile_mode: torch.compile's mode ("default", "reduce-overhead", "max-autotune",
            "max-autotune-no-cudagraphs").
        memory_format: "contiguous" or "channels_last" for four-dimensional inputs and weights.
        tf32: let CUDA round float32 operands of convolutions and products to 10 bits of mantissa. PyTorch
            does so for convolutions by default; here it has to be asked for.
        deterministic: take only deterministic cuDNN algorithms (on the CPU results repeat in any case).
        precision, threads, seed: as for every network.

    ``module`` is the ``torch.nn.Module`` of the training form; its parameters are the network's.
    """

    backend = "torch"

    def __init__(
        self,
        model: Model,
        *,
        device: str = "cpu",
        mode: str = "eager",
        compile_mode: str = "default",
        memory_format: str = "contiguous",
        tf32: bool = False,
        deterministic: bool = False,
        precision: str | None = None,
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self._mode = choose("mode", mode, MODES)
        if compile_mode != "default":  # The list of modes is the compiler's; it loads in seconds.
            choose("compile_mode", compile_mode, torch._inductor.list_mode_options())
        self._compile_mode = compile_mode
        if mode == "compile":
            before_compiling()
        self._memory_name = choose("memory_format", memory_format, MEMORY_FORMATS)
        self._memory = MEMORY_FORMATS[memory_format]
        self._device = parse_device(device)
        self._tf32, self._deterministic = bool(tf32), bool(deterministic)
        super().__init__(model, precision=precision, threads=threads, seed=seed)
        self._last: dict[str, Any] = {}
        self._root: torch.nn.Module | None = None
        self._random_state: torch.Tensor | None = None
        self._checked: set[tuple[Any, ...]] = set()
        self._surrounding: Surrounding | None = None
        self._gradient_hooks: list[Any] = []
        self._rebuild()

    @classmethod
    def node_coverage(
        cls, op: Operation, types: Mapping[str, ValueType | None] | None = None
    ) -> NodeCoverage:
        return node_coverage(op, types)

    @property
    def options(self) -> dict[str, Any]:
        return {
            **super().options,
            "device": str(self._device),
            "mode": self._mode,
            "compile_mode": self._compile_mode,
            "memory_format": self._memory_name,
            "tf32": self._tf32,
            "deterministic": self._deterministic,
        }

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def mode(self) -> str:
        parts = [self._mode]
        if self._mode == "compile" and self._compile_mode != "default":
            parts.append(self._compile_mode)
        if self._memory_name != "contiguous":
            parts.append(self._memory_name)
        parts += ["tf32"] if self._tf32 else []
        parts += ["deterministic"] if self._deterministic else []
        return "+".join(parts)

    def surround(self, surrounding: Surrounding | None) -> None:
        """Let something else call the function of a training pass, as DistributedDataParallel needs it.

        Args:
            surrounding: called as ``surrounding(function, names, *arguments)``, where
                ``function(*arguments)`` gives a tuple of tensors in the order of ``names`` (the outputs, then
                updated statistics); it returns such a tuple, to be differentiated. None: functions are called
                directly again.
        """
        self._surrounding = surrounding

    def on_gradient(self, callback: Callable[[str, torch.Tensor], None] | None) -> None:
        """Be told, during backward, when the gradient of a parameter is complete.

        Args:
            callback: called as ``callback(name, gradient)`` with the tensor that ``native("grad/NAME")``
                gives later; it may change its elements. Parameters that the loss does not depend on are not
                told. None: nobody is told any more.

        Raises:
            UserError: in mode "compile", where gradients are all there at the end only.
        """
        if callback is not None and self._mode == "compile":
            raise UserError(
                "gradients are told one by one in mode 'eager' only; this network has mode 'compile'"
            )
        for hook in self._gradient_hooks:
            hook.remove()
        self._gradient_hooks = []
        if callback is None:
            return

        def tell(name: str, parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            callback(name, parameter.grad.detach())

        for name, parameter in self._parameter_tensors.items():
            hook = parameter.register_post_accumulate_grad_hook(partial(tell, name))
            self._gradient_hooks.append(hook)

    @property
    def module(self) -> torch.nn.Module:
        """The training form as a module from the fed inputs (in graph order) to the graph's outputs."""
        return self._module(tuple(self.model.outputs), training=True)

    def _rebuild(self) -> None:
        forms = {False: (self.model, {}), True: training_form(self.model)}
        # The same tensors go on in the changed graph, so that native optimizers keep their parameters.
        previous = {name: getattr(self._root, a) for name, a in getattr(self, "_attributes", {}).items()}
        root, attributes = torch.nn.Module(), {}
        generator = torch.Generator(device=self._device)
        generator.manual_seed(self.seed)
        setattr(root, _GENERATOR, getattr(self._root, _GENERATOR, generator))
        for name, array in self.model.graph.initializers.items():
            trainable = name in self._parameters
            attributes[name] = attribute_name(name, root)
            if not has_dtype(array.dtype):
                setattr(root, attributes[name], previous.get(name, array))
                continue
            tensor = previous.get(name)
            if tensor is None:
                tensor = self._formatted(from_numpy(array, self._device).clone())
            if trainable:
                parameter = tensor if isinstance(tensor, torch.nn.Parameter) else torch.nn.Parameter(tensor)
                root.register_parameter(attributes[name], parameter)
            else:
                root.register_buffer(attributes[name], tensor.detach())
        self._forms, self._root, self._attributes = forms, root, attributes
        self._modules: dict[tuple[Any, ...], fx.GraphModule] = {}
        self._callables: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._parameter_tensors = {name: getattr(root, attributes[name]) for name in self._parameters}
        self._input_dtypes = {
            name: torch_dtype(value.dtype)
            for name, value in self.model.graph.inputs.items()
            if isinstance(value, TensorType) and value.dtype is not None and has_dtype(value.dtype)
        }

    def inference(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        wanted = self._select_outputs(inputs, outputs)
        fed = self._feed(inputs)
        with self._ambient(gradients=False):
            results = self._call(wanted, fed, training=False)
        self._last = dict(fed) | dict(zip(wanted, results, strict=True))
        return self._hand_out(wanted, results)

    def inference_and_backprop(
        self,
        inputs: Mapping[str, Any],
        loss: str = "loss",
        outputs: Sequence[str] | None = None,
        wrt: Sequence[str] | None = None,
        cotangent: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        self._check_loss(inputs, loss, cotangent is None)
        wanted = self._select_outputs(inputs, outputs)
        wanted = wanted if loss in wanted else (*wanted, loss)
        updates = self._updates(self._forms[True][1], self._forms[True][0], inputs)
        fed = self._feed(inputs)
        if wrt is None:
            targets = self._parameter_tensors
        else:
            targets = self._differentiable(self._check_wrt(wrt), fed)
        for parameter in self._parameter_tensors.values():
            parameter.grad = None
        with self._ambient(gradients=True):
            results = self._call((*wanted, *updates.values()), fed, training=True)
            self._backward(loss, results[wanted.index(loss)], targets, wrt is None, cotangent)
            if self._mode == "compile":
                self._check_compiled((*wanted, *updates.values()), fed, loss, targets, cotangent)
        self._last = dict(fed) | dict(zip(wanted, results, strict=False))
        for name, tensor in targets.items():
            assert tensor.grad is not None
            self._last[GRADIENT_PREFIX + name] = tensor.grad
        for statistic, new in zip(updates, results[len(wanted) :], strict=True):
            getattr(self._root, self._attributes[statistic]).data = new.detach()
        return self._hand_out(wanted, results)

    def _backward(
        self,
        loss: str,
        value: torch.Tensor,
        targets: Mapping[str, torch.Tensor],
        all_parameters: bool,
        cotangent: np.ndarray | None,
    ) -> None:
        check_cotangent(loss, value.dtype, value.shape, cotangent)
        if value.requires_grad:
            if cotangent is None:
                seed = torch.ones_like(value)
            else:
                seed = from_numpy(np.asarray(cotangent), self._device).to(value.dtype)
            if all_parameters:
                torch.autograd.backward([value], [seed])
            else:
                tensors = list(targets.values())
                found = torch.autograd.grad([value], tensors, [seed], allow_unused=True)
                for tensor, gradient in zip(tensors, found, strict=True):
                    tensor.grad = gradient
        for tensor in targets.values():
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)

    def _check_compiled(
        self,
        wanted: tuple[str, ...],
        fed: Mapping[str, torch.Tensor],
        loss: str,
        targets: Mapping[str, torch.Tensor],
        cotangent: np.ndarray | None,
    ) -> None:
        """Compare compiled gradients with eager ones, once for every combination of input shapes.

        torch.compile (2.13, CPU) gives wrong gradients without a word for some networks and batch sizes.

        Raises:
            UserError: they differ by more than rounding explains.
        """
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in fed.items())
        checked = (wanted, loss, tuple(targets), shapes)
        key = (True, wanted, frozenset(name for name in fed if name in self.model.graph.initializers))
        module = self._modules[key]
        if checked in self._checked or module.meta["random"]:
            return
        arguments = [fed[name] for name in module.meta["inputs"]]
        value = module(*arguments)[wanted.index(loss)]
        if not value.requires_grad:
            return
        seed = torch.ones_like(value) if cotangent is None else from_numpy(np.asarray(cotangent)).to(value)
        tensors = list(targets.values())
        expected = torch.autograd.grad([value], tensors, [seed], allow_unused=True)
        found: Sequence[torch.Tensor | None] = [tensor.grad for tensor in tensors]
        if self._surrounding is not None:
            # Those in tensor.grad may have been changed, for example averaged over ranks.
            value = self._run(key, *arguments)[wanted.index(loss)]
            found = torch.autograd.grad([value], tensors, [seed], allow_unused=True)
        for name, gradient, compiled in zip(targets, expected, found, strict=True):
            if gradient is None or compiled is None:
                continue
            scale = gradient.abs().max().item()
            difference = (compiled - gradient).abs().max().item()
            if difference > _COMPILED_TOLERANCE[gradient.dtype] * scale:
                text = ", ".join(f"{name} {list(shape)}" for name, shape in shapes)
                raise UserError(
                    f"torch.compile gives another gradient of '{name}' than eager PyTorch for inputs {text}: "
                    f"they differ by {difference:.2g}, the gradient is {scale:.2g}. This is a fault of the "
                    "compiler; use mode='eager' or another batch size (drop_last for a short last batch)"
                )
        self._checked.add(checked)

    def native(self, name: str) -> Any:
        attribute = self._attributes.get(name)
        if attribute is not None:
            return _detached(getattr(self._root, attribute))
        found = self._last.get(name)
        if found is None:
            raise UserError(
                f"'{name}' is not kept; kept are parameters, gradients (grad/NAME) and the inputs and "
                "outputs of the last run. Other values are kept after add_output(name)"
            )
        return apply(_detached, found)

    def assign(self, name: str, tensor: Any) -> None:
        attribute = self._attributes.get(name)
        if attribute is None:
            raise UserError(f"assign: the network has no parameter or constant '{name}'")
        current = getattr(self._root, attribute)
        if tensor.shape != current.shape or tensor.dtype != current.dtype:
            raise UserError(
                f"assign: '{name}' is {current.dtype}{list(current.shape)}, "
                f"got {tensor.dtype}{list(tensor.shape)}"
            )
        if isinstance(current, np.ndarray):
            setattr(self._root, attribute, tensor)
            self._modules, self._callables = {}, {}
            return
        if tensor.device != current.device:
            raise UserError(f"assign: '{name}' lies on {current.device}, the new value on {tensor.device}")
        # Elements of an expanded tensor share memory, which no in-place update survives.
        current.data = tensor.contiguous() if 0 in tensor.stride() and tensor.numel() > 1 else tensor
        stale = [key for key, module in self._modules.items() if name in module.meta["literals"]]
        for key in stale:
            del self._modules[key]
            self._callables.pop(key, None)

    def to_native(self, array: np.ndarray) -> torch.Tensor | np.ndarray:
        value = native_tensor(np.asarray(array), self._device)
        return self._formatted(value) if isinstance(value, torch.Tensor) else value

    def to_numpy(self, tensor: Any) -> Any:
        return apply(lambda value: np.array(host_array(value)), tensor)

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def random_state(self) -> dict[str, Any]:
        root = self._root
        assert root is not None
        own = getattr(root, _GENERATOR)
        others = [n for n, v in vars(root).items() if isinstance(v, torch.Generator) and v is not own]
        hosts = [
            m.step.op.label
            for m in root.children()
            if isinstance(m, HostOperation) and "rng" in m.step.rule.injected
        ]
        if others or hosts:
            raise UserError(
                "the network has random operations with streams of their own "
                f"({', '.join([*others, *hosts])}), "
                "whose state cannot be saved on the torch backend; leave out their seeds, or use the numpy "
                "backend"
            )
        compiled = self._random_state
        return {
            "backend": self.backend,
            "generator": own.get_state().numpy(),
            "compiled": None if compiled is None else compiled.cpu().numpy(),
            "streams": stream_states(own),
        }

    def restore_random_state(self, state: Mapping[str, Any]) -> None:
        if state.get("backend") != self.backend:
            super().restore_random_state(state)
            return
        own = getattr(self._root, _GENERATOR)
        own.set_state(torch.from_numpy(np.array(state["generator"])))
        restore_streams(own, state["streams"])
        if state["compiled"] is not None:
            self._random_state = torch.from_numpy(np.array(state["compiled"]))

    def native_optimizer(self, name: str, loss: str = "loss", **hyperparameters: Any) -> Any:
        self._check_open()
        from meta500.backends.torch.optimizers import create

        return create(self, name, loss, hyperparameters)

    def close(self) -> None:
        super().close()
        self._modules, self._callables, self._last, self._attributes = {}, {}, {}, {}
        self._parameter_tensors = {}
        self._root = None

    def computing(self) -> Ambient:
        return self._ambient(gradients=torch.is_grad_enabled())

    def _ambient(self, gradients: bool) -> Ambient:
        return Ambient(self._device, gradients, self.threads, self._tf32, self._deterministic)

    def _feed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        fed: dict[str, Any] = {}
        for name, value in inputs.items():
            if not isinstance(value, torch.Tensor):
                fed[name] = apply(self._tensor, self._as_input(name, value))
                continue
            wanted = self._input_dtypes.get(name, value.dtype)
            if value.dtype != wanted or value.device != self._device:
                raise UserError(
                    f"input '{name}' must be {wanted} on {self._device}, got {value.dtype} on {value.device}"
                )
            fed[name] = self._formatted(value.detach())
        shapes = {n: tuple(t.shape) for n, t in fed.items() if isinstance(t, torch.Tensor | np.ndarray)}
        self._check_shapes(shapes)
        return fed

    def _tensor(self, array: Any) -> torch.Tensor | np.ndarray:
        value = native_tensor(np.asarray(array), self._device)
        return self._formatted(value.detach()) if isinstance(value, torch.Tensor) else value

    def _formatted(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._memory is torch.channels_last and tensor.ndim == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _differentiable(self, names: Sequence[str], fed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        targets = {}
        for name in names:
            if name in self._parameter_tensors:
                targets[name] = self._parameter_tensors[name]
                continue
            if name not in fed:
                raise UserError(f"wrt: '{name}' is neither a parameter nor an input that was fed")
            if not fed[name].is_floating_point():
                raise UserError(
                    f"wrt: input '{name}' is {fed[name].dtype}; only floating point has a gradient"
                )
            fed[name] = fed[name].detach().requires_grad_()
            targets[name] = fed[name]
        return targets

    def _call(
        self, wanted: tuple[str, ...], fed: Mapping[str, torch.Tensor], training: bool
    ) -> tuple[torch.Tensor, ...]:
        defaults = frozenset(name for name in fed if name in self.model.graph.initializers)
        key = (training, wanted, defaults)
        if key not in self._callables:
            module = self._module(wanted, training, defaults)
            function: Callable[..., Any] = module
            if self._mode == "compile":
                options = None if self._compile_mode == "default" else self._compile_mode
                function = torch.compile(module, mode=options)
            self._callables[key] = function
        module = self._modules[key]
        arguments = [fed[name] for name in module.meta["inputs"]]
        if training and self._surrounding is not None:
            return self._surrounding(partial(self._run, key), wanted, *arguments)
        return self._run(key, *arguments)

    def _run(self, key: tuple[Any, ...], *arguments: Any) -> tuple[torch.Tensor, ...]:
        """The function of ``key`` on its arguments; errors name the node that failed."""
        module = self._modules[key]
        try:
            if module.meta["random"] and self._mode == "compile":
                with self._own_random_state():
                    return self._callables[key](*arguments)  # type: ignore[no-any-return]
            return self._callables[key](*arguments)  # type: ignore[no-any-return]
        except torch.OutOfMemoryError as error:
            raise UserError(f"{self.model.name}: out of memory on {self._device}: {error}") from None
        except UserError as error:
            label = failing_node(module, arguments)
            if not label or str(error).startswith(label):
                raise
            raise UserError(f"{label}: {error}") from None
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            label = failing_node(module, arguments) or self.model.path or self.model.name
            raise UserError(f"{label}: PyTorch cannot run it: {error}") from error

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        """PyTorch's default generators in this network's state, and as they were before afterwards.

        Compiled graphs can only draw from the default generators.
        """
        cuda = self._device.type == "cuda"
        with torch.random.fork_rng(devices=[self._device] if cuda else []):
            if self._random_state is None:
                torch.manual_seed(self.seed)
            elif cuda:
                torch.cuda.set_rng_state(self._random_state, self._device)
            else:
                torch.set_rng_state(self._random_state)
            yield
            self._random_state = torch.cuda.get_rng_state(self._device) if cuda else torch.get_rng_state()

    def _module(
        self, wanted: tuple[str, ...], training: bool, defaults: frozenset[str] = frozenset()
    ) -> fx.GraphModule:
        """The module for some outputs; ``defaults`` are the inputs with a default that are fed."""
        key = (training, wanted, defaults)
        if key not in self._modules:
            self._modules[key] = self._emit(wanted, training, defaults)
        return self._modules[key]

    def _emit(self, wanted: tuple[str, ...], training: bool, defaults: frozenset[str]) -> fx.GraphModule:
        model = self._forms[training][0]
        root = self._root
        assert root is not None
        emitter = Emitter(fx.Graph(), root, self._device, _GENERATOR, self._mode == "compile")
        emitter.types, emitter.source, emitter.seed = model.graph.types(), model.graph, self.seed
        graph = model.graph
        given = [n for n in graph.inputs if n not in graph.initializers or n in defaults]
        chosen = operations_for(graph, wanted, (*given, *graph.initializers))
        needed = {*wanted, *(name for op in chosen for name in (*op.operands, *captured_names(op)))}
        if any(op.op_type == "Gradient" for op in chosen):
            needed |= graph.values()
        fed = [name for name in given if name in needed]
        for index, name in enumerate(fed):
            emitter.values[name] = emitter.graph.placeholder(f"input_{index}")
        for name in graph.initializers:
            if name not in needed or name in defaults:
                continue
            if name not in self._parameter_tensors:
                emitter.constants[name] = self._constant(name, graph.initializers[name])
            if name in self._attributes:
                emitter.values[name] = emitter.graph.get_attr(self._attributes[name])
        visitor = TorchVisitor()
        for op in chosen:
            op.accept(visitor, emitter)
        emitter.graph.output(tuple(emitter.tensor(name) for name in wanted))
        module = fx.GraphModule(root, emitter.graph, class_name="Training" if training else "Inference")
        module.meta["inputs"] = fed
        module.meta["random"] = emitter.random
        module.meta["literals"] = emitter.literals
        return module

    def _constant(self, name: str, initial: np.ndarray) -> np.ndarray:
        attribute = self._attributes.get(name)
        return initial if attribute is None else host_array(getattr(self._root, attribute))

    def _hand_out(self, wanted: Sequence[str], results: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
        """Results as arrays that share memory with nothing that the network or its user keeps."""
        kept: set[int] | None = None

        def own(value: Any) -> np.ndarray:
            nonlocal kept
            array = host_array(value)
            if array.size <= _SMALL or not isinstance(value, torch.Tensor):
                return np.array(array)
            if kept is None:
                kept = self._kept_storages()
            # An output may be an input or parameter itself, or a part of it (Identity, Reshape, Slice).
            return np.array(array) if value.untyped_storage().data_ptr() in kept else array

        return {name: apply(own, value) for name, value in zip(wanted, results, strict=False)}

    def _kept_storages(self) -> set[int]:
        assert self._root is not None
        tensors = [*self._root.parameters(), *self._root.buffers()]
        fed = [leaves(value) for name, value in self._last.items() if name in self.model.graph.inputs]
        tensors += [t for value in fed for t in value if isinstance(t, torch.Tensor)]
        return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _detached(value: torch.Tensor | np.ndarray) -> torch.Tensor | np.ndarray:
    return value.detach() if isinstance(value, torch.Tensor) else value
