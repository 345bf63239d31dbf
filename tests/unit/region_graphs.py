"""Random small models for the tests of regions: a root part, equal blocks, a root part."""

from __future__ import annotations

import random
from dataclasses import replace

from autoplan.trace.graph import Block, OpGraph, Ref, SavedTensor
from tests.unit.search_graphs import BATCH, Builder

WIDTH = 8
TOKENS = 4
BLOCKS = 2


def random_model(seed: int, *, operators: int = 4) -> OpGraph:
    """``x -> linear -> blocks -> sum``; each block reads the stream and perhaps more.

    All blocks may read the same ``side``, which the root makes and which learns, and a ``mask``,
    which follows from an input alone.
    """
    draw = random.Random(seed)
    build = Builder(TOKENS, "float32")
    build.value("input", "x", "x", (BATCH, TOKENS, WIDTH), batch=True)
    build.parameter("inp.weight", (WIDTH, WIDTH))
    build.parameter("side.weight", (WIDTH, WIDTH))
    for block in range(BLOCKS):
        for number in range(operators):
            build.parameter(f"layers.{block}.w{number}", (WIDTH, WIDTH))
    build.call("/mask", "aten.neg.default", (Ref("x"),), (WIDTH,))
    _stop_learning(build)
    stream = build.linear("inp/linear", Ref("x"), "inp.weight", WIDTH, keeps=False)
    side = build.linear("side/linear", Ref("x"), "side.weight", WIDTH, keeps=False)
    recipe = _recipe(draw, operators)
    blocks = []
    for number in range(BLOCKS):
        block, stream = _block(build, recipe, f"layers.{number}", (stream, side, Ref("/mask")))
        blocks.append(block)
    loss = build.call("/sum", "aten.sum.default", (stream,), (), batch=False)
    return OpGraph(
        nodes=_read(build), blocks=tuple(blocks), output=loss, batch=BATCH,
        fingerprint=f"random-{seed}",
    )  # fmt: skip


def _stop_learning(build: Builder) -> None:
    node = build.nodes[-1]
    outputs = tuple(replace(meta, requires_grad=False) for meta in node.outputs)
    build.nodes[-1] = replace(node, outputs=outputs)


def _read(build: Builder) -> tuple:
    """The nodes without parameters that nothing reads."""
    read = {ref.node for node in build.nodes for ref in node.operands}
    return tuple(node for node in build.nodes if node.kind != "parameter" or node.name in read)


def _recipe(draw: random.Random, operators: int) -> list[tuple[str, list[int], bool]]:
    """For each operator its kind, what it reads (0 to 2 enter the block), and what it hides."""
    steps: list[tuple[str, list[int], bool]] = []
    values = [0, *draw.sample([1, 2], draw.randint(0, 2))]
    for number in range(operators):
        kind = draw.choice(["linear", "gelu", "exp", "mul", "add", "transpose"])
        if number == operators - 1 and kind == "transpose":
            kind = "add"
        count = 2 if kind in ("mul", "add") else 1
        newest = steps and draw.random() < 0.7
        read = [0 if not number else number + 2 if newest else draw.choice(values)]
        read += [draw.choice(values) for _ in range(count - 1)]
        steps.append((kind, read, draw.random() < 0.2))
        values.append(number + 3)
    return steps


def _block(
    build: Builder, recipe: list[tuple[str, list[int], bool]], path: str, entered: tuple[Ref, ...]
) -> tuple[Block, Ref]:
    first, values = len(build.nodes), list(entered)
    for number, (kind, read, hides) in enumerate(recipe):
        name = f"{path}/op{number}"
        sources = [values[k] for k in read]
        values.append(_operator(build, name, f"{path}.w{number}", kind, sources))
        if hides and kind != "transpose":
            node = build.nodes[-1]
            hidden = SavedTensor(source=None, operand=None, nbytes=128)
            build.nodes[-1] = replace(node, saved=(*node.saved, hidden))
    made = build.nodes[first:]
    inside = {node.name for node in made}
    read_refs = dict.fromkeys(ref for node in made for ref in node.operands)
    stored = {node.name for node in build.nodes if node.kind == "parameter"}
    block = Block(
        path=path,
        kind="layers.0",
        nodes=tuple(node.name for node in made),
        inputs=tuple(r for r in read_refs if r.node not in inside and r.node not in stored),
        parameters=tuple(r.node for r in read_refs if r.node in stored),
        outputs=(values[-1],),
    )
    return block, values[-1]


def _operator(build: Builder, name: str, weight: str, kind: str, sources: list[Ref]) -> Ref:
    """One operator; a transposed value is transposed back for its readers."""
    if kind == "transpose":
        return build.transpose(f"{name}#1", build.transpose(name, sources[0]))
    if kind == "linear":
        return build.linear(name, sources[0], weight, WIDTH, source=_base(build, sources[0]))
    targets = {
        "gelu": "gelu.default",
        "exp": "exp.default",
        "mul": "mul.Tensor",
        "add": "add.Tensor",
    }
    made = build.call(name, f"aten.{targets[kind]}", tuple(sources), (WIDTH,))
    saved = tuple(
        SavedTensor(source=_base(build, ref), operand=k, nbytes=build.meta(ref).nbytes)
        for k, ref in enumerate(sources)
        if kind in ("gelu", "mul")
    )
    if kind == "exp":
        saved = (SavedTensor(source=made, operand=None, nbytes=build.meta(made).nbytes),)
    build.nodes[-1] = replace(build.nodes[-1], saved=saved)
    return made


def _base(build: Builder, ref: Ref) -> Ref:
    by_name = {node.name: node for node in build.nodes}
    while by_name[ref.node].alias_of and by_name[ref.node].alias_of[ref.index]:
        found = by_name[ref.node].alias_of[ref.index]
        assert found is not None
        ref = found
    return ref
