"""The operators of probes as PyTorch runs them, forward or backward, ready to be called again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from autoplan.profiler.bench import Run
from autoplan.profiler.probes import Compute


def runnable(probe: Compute, device: torch.device, mesh: DeviceMesh | None = None) -> Run:
    """Runs the probe once on the device.

    Args:
        mesh: of all ranks, over which pieces of tensors lie.

    Raises:
        RuntimeError: the device does not have the operator in this dtype, too little memory, or no
            ranks to lay pieces on.
    """
    if probe.operator == "adamw":
        return _optimizer_step([torch.randn(probe.shape[0], device=device)])
    if probe.operator in ("adamw tensors", "adamw pieces"):
        number, elements = probe.shape
        tensors = [torch.randn(elements, device=device) for _ in range(number)]
        in_pieces = probe.operator == "adamw pieces"
        return _optimizer_step(list(map(_pieces_on(mesh), tensors)) if in_pieces else tensors)
    copies = [_forward(probe, device) for _ in range(probe.copies)]
    if not probe.backward:
        return lambda: _drop([forward() for _, forward in copies])
    operands = [operand for own, _ in copies for operand in own]
    results = [forward() for _, forward in copies]
    gradients = [torch.ones_like(result) for result in results]
    return lambda: _drop(torch.autograd.grad(results, operands, gradients, retain_graph=True))


def _forward(
    probe: Compute, device: torch.device
) -> tuple[tuple[Tensor, ...], Callable[[], Tensor]]:
    """What an operator reads, and a call of it."""

    def drawn(*shape: int) -> Tensor:
        dtype = getattr(torch, probe.dtype)
        return torch.randn(shape, device=device).to(dtype).requires_grad_()

    if probe.operator == "product":
        rows, inputs, outputs = probe.shape
        x, weight = drawn(rows, inputs), drawn(outputs, inputs)
        return (x, weight), lambda: F.linear(x, weight)
    if probe.operator == "attention":
        q, k, v = (drawn(*probe.shape) for _ in range(3))
        return (q, k, v), lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = drawn(*probe.shape)
    if probe.operator == "add":
        y = drawn(*probe.shape)
        return (x, y), lambda: x + y
    if probe.operator == "gelu":
        return (x,), lambda: F.gelu(x)
    if probe.operator == "softmax":
        return (x,), lambda: F.softmax(x, dim=-1)
    width = probe.shape[-1]
    weight, bias = drawn(width), drawn(width)
    return (x, weight, bias), lambda: F.layer_norm(x, (width,), weight, bias)


def _optimizer_step(tensors: Sequence[Tensor]) -> Run:
    parameters = [torch.nn.Parameter(tensor) for tensor in tensors]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-9)
    return lambda: _drop(optimizer.step())


def _pieces_on(mesh: DeviceMesh | None) -> Callable[[Tensor], Tensor]:
    """Makes a tensor the piece of a larger one."""
    if mesh is None:
        raise RuntimeError("one rank alone has no pieces of tensors")
    return lambda tensor: DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)


def _drop(result: object) -> None:
    """Lets go of a result: of all copies at once, as a forward keeps what it makes."""
