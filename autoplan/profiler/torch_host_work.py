"""Programs of many ranks as the runtime runs them, and the same on one: what the host adds.

Pieces of parameters are read by the runtime's own function, forward and backward, by two
microbatches whose gradients add up. Messages are its autograd functions beside the bare calls.
Units are modules of some tensors under FSDP2, as one block has, beside the same by themselves.
Gradients of weights are taken apart as PyTorch's pipelines do, beside one whole backward.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from autoplan.profiler.bench import Compared, Run
from autoplan.profiler.probes import HostWork
from autoplan.runtime import torch_private as c10d
from autoplan.runtime.collectives import AxisGroup, all_reduce__all_reduce
from autoplan.runtime.data_parallel import sum_gradients
from autoplan.runtime.ops import local

_FLOAT_BYTES, _TENSORS, _MICROBATCHES, _READ = 4, 12, 2, 16


def programs(probe: HostWork, mesh: DeviceMesh) -> Compared:
    """On each rank of the mesh."""
    elements = max(1, probe.nbytes // _FLOAT_BYTES)
    if probe.around == "pieces":
        uses = probe.number // _MICROBATCHES
        return Compared(_reading(uses, elements, mesh), _reading(uses, elements, None))
    if probe.around == "messages":
        return _messages(probe.number, elements, mesh)
    if probe.around == "gradients":
        return _splitting(probe.number)
    is_step = probe.around == "units"
    units = (_units(probe.number, elements, of) for of in (mesh, None))
    return Compared(*(_passing(each, is_step=is_step) for each in units))


def _reading(number: int, elements: int, mesh: DeviceMesh | None) -> Run:
    """Reads parameters, or pieces of them, and makes their gradients."""
    tensors = [torch.ones(elements) for _ in range(number)]
    if mesh is not None:
        tensors = [DTensor.from_local(each, mesh, [Shard(0)], run_check=False) for each in tensors]
    parameters = [nn.Parameter(each) for each in tensors]
    gradients = [torch.ones(elements) for _ in range(number)]

    def run() -> None:
        for _ in range(_MICROBATCHES):
            read = [local(parameter) * 1.0 for parameter in parameters]
            torch.autograd.backward(read, gradients)
        for parameter in parameters:
            parameter.grad = None

    return run


def _messages(number: int, elements: int, mesh: DeviceMesh) -> Compared:
    """Half of the messages in a forward, the others in its backward."""
    name = mesh.get_group().group_name
    axis = AxisGroup(name="tp", size=mesh.size(), rank=mesh.get_local_rank(), group=name)
    x = torch.ones(elements, requires_grad=True)

    def sending() -> None:
        y = x
        for _ in range(number // 2):
            y = all_reduce__all_reduce(y, axis)
        torch.autograd.backward(y, torch.ones_like(y))
        x.grad = None

    def bare() -> None:
        y = x.detach()
        for _ in range(number // 2 * 2):
            y = c10d.wait(c10d.all_reduce(y, "sum", name))

    return Compared(sending, bare)


def _splitting(number: int) -> Compared:
    """The backward of layers of one weight each; ``whole`` has the same forward."""
    weights = [nn.Parameter(torch.ones(_READ, _READ)) for _ in range(number)]
    gradient = torch.ones(1, _READ)

    def forward() -> tuple[Tensor, Tensor]:
        y = x = torch.ones(1, _READ, requires_grad=True)
        for weight in weights:
            weight.grad = None
            y = nn.functional.linear(y, weight)
        return x, y

    def split() -> None:
        x, y = forward()
        _, groups = c10d.backward_input([y], [gradient], [x], iter(weights))
        c10d.backward_weight(iter(weights), groups)

    def whole() -> None:
        _, y = forward()
        torch.autograd.backward(y, gradient)

    return Compared(split, whole)


class _Unit(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.ones(elements // _TENSORS)) for _ in range(_TENSORS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + weight[:_READ]
        return x


def _units(number: int, elements: int, mesh: DeviceMesh | None) -> nn.Module:
    """Modules one after the other, on two ranks each a unit of FSDP2."""
    stack = nn.Sequential(*(_Unit(elements) for _ in range(number)))
    if mesh is None:
        return stack
    for module in (*stack, stack):
        sum_gradients(fully_shard(module, mesh=mesh, reshard_after_forward=True))
    return stack


def _passing(stack: nn.Module, *, is_step: bool) -> Run:
    x = torch.ones(_READ)

    def forward() -> None:
        with torch.no_grad():
            stack(x)

    def step() -> None:
        stack(x).sum().backward()
        for parameter in stack.parameters():
            parameter.grad = None

    return step if is_step else forward


def mesh_of_two(kind: str) -> DeviceMesh | None:
    """Of the first two ranks; made by all at once. None where there is one."""
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return DeviceMesh(kind, [0, 1])
