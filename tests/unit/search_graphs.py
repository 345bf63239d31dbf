"""Small graphs, clusters and jobs for the tests of the search, written by hand without torch."""

from __future__ import annotations

from dataclasses import replace

from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import Plan, RegionPlan
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref, SavedTensor, TensorMeta
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec

BATCH = 2


def gated_mlp(
    layers: int, *, width: int = 64, hidden: int = 128, tokens: int = 16, dtype: str = "float32"
) -> OpGraph:
    """``x -> linear -> [x + down(gelu(gate(x)) * up(x))] * layers -> sum``.

    The product is transposed and transposed back, so that what ``down`` keeps is a view.
    """
    build = Builder(tokens, dtype)
    build.value("input", "x", "x", (BATCH, tokens, width), batch=True)
    build.parameter("inp.weight", (width, width))
    for layer in range(layers):
        path = f"layers.{layer}"
        build.parameter(f"{path}.up.weight", (hidden, width))
        build.parameter(f"{path}.gate.weight", (hidden, width))
        build.parameter(f"{path}.down.weight", (width, hidden))
    stream = build.linear("inp/linear", Ref("x"), "inp.weight", width, keeps=False)
    blocks = []
    for layer in range(layers):
        first = len(build.nodes)
        entered = stream
        stream = _block(build, f"layers.{layer}", stream, width, hidden)
        blocks.append(
            Block(
                path=f"layers.{layer}",
                kind="layers.0",
                nodes=tuple(node.name for node in build.nodes[first:]),
                inputs=(entered,),
                parameters=tuple(
                    f"layers.{layer}.{name}.weight" for name in ("up", "gate", "down")
                ),
                outputs=(stream,),
            )
        )
    loss = build.call("/sum", "aten.sum.default", (stream,), (), batch=False)
    return OpGraph(
        nodes=tuple(build.nodes),
        blocks=tuple(blocks),
        output=loss,
        batch=BATCH,
        fingerprint="gated-mlp",
    )


def chain(layers: int, *, width: int, tokens: int) -> OpGraph:
    """``x -> [gelu(linear(x))] * layers -> sum``: few enough choices to try them all."""
    build = Builder(tokens, "float32")
    build.value("input", "x", "x", (BATCH, tokens, width), batch=True)
    build.parameter("inp.weight", (width, width))
    for layer in range(layers):
        build.parameter(f"layers.{layer}.weight", (width, width))
    stream = build.linear("inp/linear", Ref("x"), "inp.weight", width, keeps=False)
    blocks = []
    for layer in range(layers):
        block, stream = _gelu_block(build, f"layers.{layer}", "layers.0", stream, None, width)
        blocks.append(block)
    loss = build.call("/sum", "aten.sum.default", (stream,), (), batch=False)
    return OpGraph(
        nodes=tuple(build.nodes), blocks=tuple(blocks), output=loss, batch=BATCH,
        fingerprint="chain",
    )  # fmt: skip


def two_kinds(layers: int, *, width: int, tokens: int) -> OpGraph:
    """An encoder, and a decoder all of whose blocks read the encoder's result.

    Encoder blocks are ``gelu(linear(x))``; decoder blocks ``gelu(linear(x * encoded))``. Both sides
    start from the same tensor.
    """
    build = Builder(tokens, "float32")
    build.value("input", "x", "x", (BATCH, tokens, width), batch=True)
    build.parameter("inp.weight", (width, width))
    for path in (f"{side}.{layer}" for side in ("enc", "dec") for layer in range(layers)):
        build.parameter(f"{path}.weight", (width, width))
    start = build.linear("inp/linear", Ref("x"), "inp.weight", width, keeps=False)
    encoded, blocks = start, []
    for layer in range(layers):
        block, encoded = _gelu_block(build, f"enc.{layer}", "enc.0", encoded, None, width)
        blocks.append(block)
    stream = start
    for layer in range(layers):
        block, stream = _gelu_block(build, f"dec.{layer}", "dec.0", stream, encoded, width)
        blocks.append(block)
    loss = build.call("/sum", "aten.sum.default", (stream,), (), batch=False)
    return OpGraph(
        nodes=tuple(build.nodes), blocks=tuple(blocks), output=loss, batch=BATCH,
        fingerprint="two-kinds",
    )  # fmt: skip


def _gelu_block(
    build: Builder, path: str, kind: str, entered: Ref, encoded: Ref | None, width: int
) -> tuple[Block, Ref]:
    first, read = len(build.nodes), entered
    if encoded is not None:
        both = (entered, encoded)
        read = build.call(f"{path}/mul", "aten.mul.Tensor", both, (width,), keeps=(0, 1))
    made = build.linear(f"{path}/linear", read, f"{path}.weight", width)
    left = build.call(f"{path}/gelu", "aten.gelu.default", (made,), (width,), keeps=(0,))
    block = Block(
        path=path,
        kind=kind,
        nodes=tuple(node.name for node in build.nodes[first:]),
        inputs=(entered,) if encoded is None else (entered, encoded),
        parameters=(f"{path}.weight",),
        outputs=(left,),
    )
    return block, left


def _block(build: Builder, path: str, stream: Ref, width: int, hidden: int) -> Ref:
    up = build.linear(f"{path}.up/linear", stream, f"{path}.up.weight", hidden)
    gate = build.linear(f"{path}.gate/linear", stream, f"{path}.gate.weight", hidden)
    act = build.call(f"{path}/gelu", "aten.gelu.default", (gate,), (hidden,), keeps=(0,))
    product = build.call(f"{path}/mul", "aten.mul.Tensor", (act, up), (hidden,), keeps=(0, 1))
    turned = build.transpose(f"{path}/transpose", product)
    back = build.transpose(f"{path}/transpose#1", turned)
    down = build.linear(f"{path}.down/linear", back, f"{path}.down.weight", width, source=product)
    return build.call(f"{path}/add", "aten.add.Tensor", (stream, down), (width,))


class Builder:
    """Adds nodes; activations are (batch, tokens, features)."""

    def __init__(self, tokens: int, dtype: str) -> None:
        self.tokens = tokens
        self.dtype = dtype
        self.nodes: list[OpNode] = []

    def value(
        self, kind: str, name: str, target: str, shape: tuple[int, ...], *, batch: bool = False,
        learns: bool = False,
    ) -> None:  # fmt: skip
        meta = TensorMeta(
            shape=shape, dtype=self.dtype, batch_dims=(0,) if batch else (), requires_grad=learns
        )
        self.nodes.append(OpNode(name=name, kind=kind, target=target, outputs=(meta,)))  # type: ignore[arg-type]

    def parameter(self, name: str, shape: tuple[int, ...]) -> None:
        self.value("parameter", name, name, shape, learns=True)

    def call(
        self, name: str, target: str, operands: tuple[Ref, ...], features: tuple[int, ...], *,
        keeps: tuple[int, ...] = (), batch: bool = True,
    ) -> Ref:  # fmt: skip
        shape = (BATCH, self.tokens, *features) if batch else ()
        meta = TensorMeta(
            shape=shape, dtype=self.dtype, batch_dims=(0,) if batch else (), requires_grad=True
        )
        self.nodes.append(
            OpNode(
                name=name, kind="call", target=target, args=operands, outputs=(meta,),
                alias_of=(None,), saved=tuple(self._kept(operands[k], k) for k in keeps),
            )
        )  # fmt: skip
        return Ref(name)

    def linear(
        self, name: str, operand: Ref, weight: str, features: int, *, keeps: bool = True,
        source: Ref | None = None,
    ) -> Ref:  # fmt: skip
        self.call(name, "aten.linear.default", (operand, Ref(weight)), (features,))
        made = self.nodes[-1]
        flops = 2 * made.outputs[0].numel * self.meta(operand).shape[-1]
        learns = 2 if keeps else 1
        self.nodes[-1] = replace(
            made,
            flops=flops,
            backward_flops=learns * flops,
            saved=(self._kept(operand, 0, source),) if keeps else (),
        )
        return Ref(name)

    def transpose(self, name: str, operand: Ref) -> Ref:
        old = self.meta(operand)
        batch, middle, last = old.shape
        meta = replace(old, shape=(batch, last, middle))
        self.nodes.append(
            OpNode(
                name=name, kind="call", target="aten.transpose.int", args=(operand, 1, 2),
                outputs=(meta,), alias_of=(operand,),
            )
        )  # fmt: skip
        return Ref(name)

    def meta(self, ref: Ref) -> TensorMeta:
        return next(node for node in self.nodes if node.name == ref.node).outputs[ref.index]

    def _kept(self, operand: Ref, position: int, source: Ref | None = None) -> SavedTensor:
        return SavedTensor(
            source=source or operand, operand=position, nbytes=self.meta(operand).nbytes
        )


def small_cluster(memory_bytes: int = 2**40, *, gpus_per_node: int = 4) -> ClusterSpec:
    """A cluster whose kernels start at once, so that small operators are worth splitting."""
    cluster = load("dgx-a100-80g")
    device = replace(
        cluster.device, memory_bytes=memory_bytes, launch_s=1e-9, workspace_bytes=2**20
    )
    link = replace(cluster.intra_node, launch_s=1e-8, latency_s=1e-9)
    outer = replace(cluster.inter_node, launch_s=2e-8, latency_s=2e-9)
    return replace(
        cluster, device=device, intra_node=link, inter_node=outer, gpus_per_node=gpus_per_node
    )


def job(*, nodes: int = 1, gpus: int = 4, batch: int = 8, **pins: int | str) -> Job:
    """A job in fp32 with AdamW."""
    return Job(
        model=ModelSource(kind="object", name="test", seq_len=16),
        cluster="test",
        nodes=nodes,
        gpus_per_node=gpus,
        global_batch=batch,
        precision="fp32",
        pins=Pins(**pins),  # type: ignore[arg-type]
        memory_margin=0.0,
    )


def region_of(plan: Plan, kind: str) -> RegionPlan:
    """The placements of one block kind."""
    return next(region for region in plan.regions if region.kind == kind)
