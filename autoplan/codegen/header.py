"""The docstring of emitted source: the model, the mesh, and what each rank stores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from autoplan.codegen.choices import Choices
from autoplan.sharding.placement import Replicate, local_shape
from autoplan.trace.graph import OpNode, Ref


def header(choices: Choices, model: str) -> str:
    """Text without quotes or backslashes, ready for a docstring."""
    count = choices.num_microbatches
    samples = choices.graph.batch // choices.splits
    pp = len({stage.rank for stage in choices.stages})
    pipeline = f"pp {pp} x " if pp else ""
    each = f"of {samples} sample{'s' if samples > 1 else ''} per dp rank"
    step = (
        f"An evaluation without a loss is of microbatches {each}."
        if choices.evaluates
        else f"A step is {count} microbatch{'es' if count > 1 else ''} {each}, "
        f"{choices.graph.batch} in all."
    )
    lines = [
        f"{printable(model)} for one of {pipeline}dp {choices.dp} x tp {choices.tp} ranks.",
        "",
        step,
        "",
        f"Each rank stores{' of its stages' * bool(pp)} (dp may split it further):",
        "",
        *_table(choices),
    ]
    return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """``text`` with everything but letters, digits and ``. _ - : /`` replaced."""
    return re.sub(r"[^\w.\-:/]", "?", text, flags=re.ASCII)


def _table(choices: Choices) -> Iterator[str]:
    rows = [_row(choices, node) for node in choices.graph.nodes if _is_shown(choices, node)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for name, shape, placement in rows:
        yield f"    {name:{widths[0]}}  {shape:{widths[1]}}  {placement}".rstrip()


def _is_shown(choices: Choices, node: OpNode) -> bool:
    """Parameters outside blocks, and those of the first block of each kind."""
    if node.kind != "parameter":
        return False
    later = [b for blocks in choices.graph.kinds.values() for b in blocks[1:]]
    return not any(node.name in block.parameters for block in later) or any(
        node.name in blocks[0].parameters for blocks in choices.graph.kinds.values()
    )


def _row(choices: Choices, node: OpNode) -> tuple[str, str, str]:
    whole = choices.graph.meta(Ref(node.name)).shape
    placement = choices.storage(node.name)
    own = local_shape(whole, placement, choices.tp)
    shown = f"{list(own)}" + (f" of {list(whole)}" if math.prod(own) != math.prod(whole) else "")
    return printable(node.target), shown, "" if placement == Replicate() else repr(placement)
