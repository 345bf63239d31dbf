"""Whether ranks of ``tp`` may share the samples of a microbatch, for a model that is mostly tables.

Recommenders are trained with tables split over ranks beside small layers that every rank has whole
and runs on samples of its own. A table that ``tp`` splits by columns, or by whole tables, leaves
rows of all samples in pieces; one all-to-all turns these into whole rows of a rank's own samples,
and the gradients of the small layers are summed over ``tp``. Where most parameters are weights of
products, ``dp`` shares samples at the same price, and this would only be twice the choices; so it
is offered by size: where tables hold ``LEAST_SHARE`` of all parameters.
"""

from __future__ import annotations

from autoplan.search.lookup_kernels import LOOKUPS
from autoplan.trace.graph import OpGraph, OpNode, Ref

LEAST_SHARE = 0.9
"""Of the elements of all parameters, those in tables."""

_BY_ROW = LOOKUPS | {"aten.gather.default", "aten.index_select.default", "aten.index.Tensor"}


def is_mostly_tables(graph: OpGraph) -> bool:
    """Whether ``LEAST_SHARE`` of all parameters are read by numbers of their rows alone."""
    total = in_tables = 0
    for node in graph.of_kind("parameter"):
        readers = [graph.by_name[name] for name in graph.readers.get(Ref(node.name), ())]
        total += node.outputs[0].numel
        if readers and all(_looks_up(reader, node.name) for reader in readers):
            in_tables += node.outputs[0].numel
    return in_tables >= LEAST_SHARE * total > 0


def _looks_up(call: OpNode, parameter: str) -> bool:
    """Whether a call reads rows of a parameter, and the parameter as nothing else."""
    table, *others = (ref.node for ref in call.operands)
    return call.target in _BY_ROW and table == parameter and parameter not in others
