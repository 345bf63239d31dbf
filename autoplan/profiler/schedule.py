"""Which probes tell the values of a profile, on a machine of so many ranks.

Products of the shapes that training has, whole and awkward ones, forward and backward as autograd
runs them; attention; operators bound by memory, in sizes from those that only start to those that
stream; an optimizer's step; every collective from small to large messages over groups of 2, 4 ...
ranks. On a CPU, where ranks share cores, also what a rank loses by the others' work.

What the shapes are priced as are the planner's kernels (``autoplan.search.kernels``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoplan.profiler.probes import (
    Compute,
    Exchange,
    HostCopy,
    HostWork,
    Idle,
    Operator,
    Overlap,
    Probe,
    Sharing,
    Workspace,
)
from cost_models.algorithms import CollectiveKind
from cost_models.optimizers import optimizer
from cost_models.peaks import element_bytes
from cost_models.work import FlashAttention, Gemm, Streaming, Work

KIB, MIB = 2**10, 2**20
OTHERS = ("bfloat16", "float16", "float64")
_COPIES, _SMALL_ELEMENTS = 8, 100_000
_MOST_COPIES, _KEPT_BYTES = 64, 16 * MIB
_PIECES, _MESSAGES, _GRADIENTS, _SMALL_BYTES = 40, 40, 40, 64
_UNITS, _UNIT_BYTES = 4, (3 * 2**8, 3 * MIB)
_SMALL_PARAMETERS = 20, 16
SENT: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives of plans; pairs of ranks also send and receive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What is measured on one kind of device; ``few_products`` in each dtype but the main one."""

    products: tuple[tuple[int, int, int], ...]
    few_products: tuple[tuple[int, int, int], ...]
    attention: tuple[tuple[int, int, int, int], ...]
    streaming: tuple[tuple[int, int], ...]
    optimizer: tuple[int, ...]
    messages: tuple[int, ...]
    beside_products: int


CPU_QUICK = Sizes(
    products=(
        (256, 256, 256), (256, 256, 1024), (256, 1024, 256), (128, 512, 512), (64, 256, 256),
        (512, 512, 512), (32, 1024, 1024), (257, 253, 511), (100, 300, 700), (1, 16, 16),
    ),
    few_products=((256, 256, 256), (256, 256, 1024), (128, 512, 512), (100, 300, 700)),
    attention=((4, 8, 32, 32), (2, 4, 128, 64), (1, 4, 256, 64)),
    streaming=((1, 16), (128, 256), (512, 512), (1024, 1024)),
    optimizer=(65_536, 1_048_576),
    messages=(4 * KIB, 128 * KIB, MIB),
    beside_products=MIB,
)  # fmt: skip
CPU_FULL = Sizes(
    products=(
        *CPU_QUICK.products, (1024, 1024, 1024), (2048, 512, 2048), (8, 2048, 2048),
        (31, 129, 1000), (1000, 768, 768), (16, 64, 64),
    ),
    few_products=(*CPU_QUICK.few_products, (512, 512, 512), (1024, 1024, 1024)),
    attention=(*CPU_QUICK.attention, (1, 8, 512, 64), (1, 4, 300, 80)),
    streaming=(*CPU_QUICK.streaming, (64, 64), (2048, 2048)),
    optimizer=(*CPU_QUICK.optimizer, 8_388_608),
    messages=(*CPU_QUICK.messages, KIB, 32 * KIB, 512 * KIB, 4 * MIB, 16 * MIB),
    beside_products=MIB,
)  # fmt: skip
GPU_QUICK = Sizes(
    products=(
        (4096, 4096, 4096), (8192, 4096, 12288), (2048, 8192, 2048), (512, 1024, 1024),
        (4096, 4096, 11008), (4097, 4095, 4093), (1024, 768, 50257), (64, 64, 64),
    ),
    few_products=(),
    attention=((4, 16, 2048, 128), (1, 32, 4096, 128), (8, 16, 1024, 64)),
    streaming=((1, 16), (1024, 1024), (8192, 4096), (16384, 8192)),
    optimizer=(1_048_576, 67_108_864),
    messages=(8 * KIB, 128 * KIB, 2 * MIB, 32 * MIB, 256 * MIB),
    beside_products=64 * MIB,
)  # fmt: skip
GPU_FULL = Sizes(
    products=(
        *GPU_QUICK.products, (16384, 8192, 8192), (8192, 14400, 1800), (8192, 13824, 1728),
        (256, 4096, 4096), (300, 700, 900), (32768, 1024, 1024),
    ),
    few_products=(),
    attention=(*GPU_QUICK.attention, (1, 16, 8192, 128), (3, 12, 1000, 80)),
    streaming=(*GPU_QUICK.streaming, (256, 256), (32768, 8192)),
    optimizer=(*GPU_QUICK.optimizer, 268_435_456),
    messages=(*GPU_QUICK.messages, 32 * KIB, 512 * KIB, 8 * MIB, 64 * MIB),
    beside_products=64 * MIB,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The job that measures: ranks in all and of each node, with what a node's ranks share.

    ``adapters`` are those of the node's network; 0 where none is told.
    """

    is_gpu: bool
    world: int
    per_node: int
    cores: int
    threads: int
    quick: bool
    adapters: int = 0


def probes_for(setting: Setting) -> tuple[Probe, ...]:
    """The probes in the order in which they are taken: what matters most comes first."""
    sizes = _sizes(setting)
    main = "bfloat16" if setting.is_gpu else "float32"
    computing = 1 if setting.is_gpu else min(setting.per_node, setting.cores)
    return (
        Workspace(),
        Idle(name="idle at the start", devices=computing),
        *sharing(setting),
        *(probe for shape in sizes.products for probe in products(shape, main)),
        *(probe for shape in sizes.streaming for probe in streaming(shape, main)),
        *(optimizer_step(elements) for elements in sizes.optimizer),
        *(() if setting.is_gpu else small_steps()),
        *host_work(setting),
        *(probe for shape in sizes.attention for probe in attention(shape, main)),
        Idle(name="idle before messages", devices=computing),
        *overlap(setting, sizes.beside_products),
        *exchanges(setting, sizes.messages),
        *(probe for dtype in OTHERS for s in sizes.few_products for probe in products(s, dtype)),
        *(host_copies() if setting.is_gpu else ()),
    )


def sharing(setting: Setting) -> Iterator[Sharing]:
    """What 2, 4 ... ranks of a node lose; where they have several threads, cores included."""
    if setting.is_gpu:
        return
    for ranks in _powers(setting.per_node):
        cores = min(1.0, setting.cores / ranks) if setting.threads == 1 else 1.0
        yield Sharing(devices=ranks, cores=cores)


def products(shape: tuple[int, int, int], dtype: str) -> Iterator[Compute]:
    """A linear layer of (rows, inputs, outputs): its product, and those of both gradients."""
    rows, inputs, outputs = shape

    def gemm(m: int, n: int, k: int) -> Gemm:
        return Gemm(m=m, n=n, k=k, dtype=dtype, output_bytes=element_bytes(dtype))

    forward = (gemm(rows, outputs, inputs),)
    backward = gemm(rows, inputs, outputs), gemm(inputs, outputs, rows)
    yield _compute("product", shape, dtype, forward, rows * inputs + inputs * outputs)
    yield _compute("product", shape, dtype, backward, rows * inputs + inputs * outputs, True)


def attention(shape: tuple[int, int, int, int], dtype: str) -> Iterator[Compute]:
    """Causal attention of (batch, heads, positions, head dimension)."""
    batch, heads, positions, head_dim = shape
    for backward in (False, True):
        work = FlashAttention(
            batch=batch, heads=heads, kv_heads=heads, queries=positions, keys=positions,
            head_dim=head_dim, value_dim=head_dim, dtype=dtype, causal=True, backward=backward,
        )  # fmt: skip
        elements = 3 * batch * heads * positions * head_dim
        yield _compute("attention", shape, dtype, (work,), elements, backward)


def streaming(shape: tuple[int, int], dtype: str) -> Iterator[Compute]:
    """Operators bound by memory on (rows, width); the backward moves twice as much."""
    rows, width = shape
    tensor = rows * width * element_bytes(dtype)
    moved: dict[Operator, int] = {
        "add": 3 * tensor,
        "gelu": 2 * tensor,
        "layer_norm": 2 * tensor + 2 * width * element_bytes(dtype),
        "softmax": 2 * tensor,
    }
    for operator, nbytes in moved.items():
        for backward in (False, True) if operator != "add" else (False,):
            work = Streaming(bytes=(1 + backward) * nbytes)
            yield _compute(operator, shape, dtype, (work,), rows * width, backward, _of_new(tensor))


def optimizer_step(elements: int) -> Compute:
    """AdamW on one float32 parameter; its kernels' starts are in its traffic, as when planning."""
    work = Streaming(bytes=optimizer("adamw").traffic_bytes * elements, kernels=0)
    return Compute(operator="adamw", shape=(elements,), dtype="float32", works=(work,))


def small_steps() -> Iterator[Compute]:
    """AdamW on many small parameters: what each takes whatever its size."""
    for operator in ("adamw tensors", "adamw pieces"):
        yield Compute(operator=operator, shape=_SMALL_PARAMETERS, dtype="float32", works=())


def exchanges(setting: Setting, sizes: Sequence[int]) -> Iterator[Exchange]:
    """All collectives over groups within a node, all of whose ranks work, and over all ranks."""
    within = [(ranks, ranks, ranks) for ranks in _powers(setting.per_node)]
    across = (setting.world, setting.per_node, setting.per_node)
    groups = within + ([across] if setting.world > setting.per_node else [])
    for nbytes in sizes:
        for ranks, per_node, busy in groups:
            for kind in (*SENT, "send_recv") if ranks == 2 else SENT:
                yield Exchange(
                    kind=kind, nbytes=nbytes, ranks=ranks, per_node=per_node, in_use=busy
                )


def overlap(setting: Setting, nbytes: int) -> Iterator[Overlap]:
    """Over all GPUs; on a CPU over ranks that have a core each."""
    if setting.world > 1:
        own_core = max(2, min(setting.per_node, setting.cores))
        yield Overlap(nbytes=nbytes, ranks=setting.world if setting.is_gpu else own_core)


def host_work(setting: Setting) -> Iterator[HostWork]:
    """Of what has nearly no bytes, and of units that take time to copy."""
    if setting.is_gpu or setting.world < 2:
        return
    yield HostWork(around="pieces", number=_PIECES, nbytes=_SMALL_BYTES)
    yield HostWork(around="messages", number=_MESSAGES, nbytes=_SMALL_BYTES)
    yield HostWork(around="gradients", number=_GRADIENTS, nbytes=_SMALL_BYTES)
    for nbytes in _UNIT_BYTES:
        for around in ("units forward", "units"):
            yield HostWork(around=around, number=_UNITS, nbytes=nbytes)


def host_copies() -> Iterator[HostCopy]:
    """Large copies either way."""
    for to_device in (True, False):
        yield HostCopy(nbytes=64 * MIB, to_device=to_device)


def _compute(
    operator: Operator,
    shape: tuple[int, ...],
    dtype: str,
    works: tuple[Work, ...],
    elements: int,
    backward: bool = False,
    at_least: int = 1,
) -> Compute:
    copies = max(at_least, _COPIES if elements < _SMALL_ELEMENTS else 1)
    return Compute(
        operator=operator, shape=shape, dtype=dtype, works=works * copies,
        backward=backward, copies=copies,
    )  # fmt: skip


def _of_new(nbytes: int) -> int:
    """How many tensors of so many bytes are kept at once, as by a forward.

    What is made is then new memory, and what is read is in no core's own cache.
    """
    return max(1, min(_MOST_COPIES, _KEPT_BYTES // nbytes))


def _sizes(setting: Setting) -> Sizes:
    if setting.is_gpu:
        return GPU_QUICK if setting.quick else GPU_FULL
    return CPU_QUICK if setting.quick else CPU_FULL


def _powers(most: int) -> list[int]:
    """2, 4, 8 ... and the number itself."""
    found = [2**power for power in range(1, most.bit_length()) if 2**power <= most]
    return found if most in (1, *found) else [*found, most]
