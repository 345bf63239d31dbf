"""Builds one function: keeps what each tensor is called and where it is, and adds statements.

Readers of one tensor with the same port share one conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from autoplan.codegen.again import Again, marked
from autoplan.codegen.choices import Choices
from autoplan.codegen.draws import stand_in
from autoplan.codegen.liveness import tidy
from autoplan.codegen.naming import Names
from autoplan.codegen.operators import returns_list
from autoplan.codegen.program import (
    DRAWS,
    Call,
    Constant,
    Convert,
    Expression,
    Function,
    Held,
    Operand,
    Path,
    Statement,
    Value,
    operands,
)
from autoplan.codegen.sizes import local_arguments, local_target
from autoplan.sharding.placement import Placement, Replicate, Shard
from autoplan.sharding.redistribute import Conversion, conversion
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import Arg, BatchInt, OpNode, Ref

_GRADIENT_FREE = {
    "all_gather": "all_gather__slice",
    "reduce_scatter": "reduce_scatter__all_gather",
    "slice": "slice__all_gather",
    "all_to_all": "all_to_all__all_to_all",
    "regroup": "regroup__regroup",
}
_SUFFIX = {
    "identity": "read",
    "all_reduce": "sum",
    "all_gather": "whole",
    "reduce_scatter": "shard",
    "all_to_all": "moved",
    "regroup": "regrouped",
    "slice": "shard",
    "mask": "term",
}


class Scope:
    """One function in the making."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._graph = choices.graph
        self._names = Names()
        self._inputs: list[Value] = []
        self._statements: list[Statement] = []
        self._operands: dict[Ref, Operand] = {}
        self._read: dict[tuple[Ref, Port], Operand] = {}

    def input(self, ref: Ref, name: str, placement: Placement) -> Value:
        """Adds an argument of the function that holds ``ref``."""
        value = self._value(ref, name, placement)
        self._inputs.append(value)
        self._operands[ref] = value
        return value

    def hold(self, ref: Ref, path: Path, placement: Placement) -> None:
        """Reads a parameter or buffer at ``path`` below the module."""
        meta = self._graph.meta(ref)
        shape = self._choices.shape(ref, placement)
        self._operands[ref] = Held(path=path, shape=shape, dtype=meta.dtype, placement=placement)

    def constant(self, node: OpNode, name: str) -> None:
        """Adds the tensor of a constant node."""
        ref = Ref(node.name)
        value = self._value(ref, name, Replicate())
        values = node.args[0] if len(node.args) == 1 else node.args
        self._statements.append(Constant(values=_plain(values), output=value))
        self._operands[ref] = value

    def operand(self, ref: Ref) -> Operand:
        """The tensor as its producer leaves it."""
        return self._operands[ref]

    def read(self, ref: Ref, port: Port) -> Operand:
        """The tensor as a reader with this port takes it; converted at the first such read."""
        key = ref, port
        if key not in self._read:
            source = self._operands[ref]
            differentiable = self._graph.meta(ref).requires_grad
            change = conversion(source.placement, port, differentiable=differentiable)
            self._read[key] = source if change is None else self._convert(ref, source, change)
        return self._read[key]

    def call(self, node: OpNode, name: str) -> None:
        """Adds the operator of a node, and the conversions of what it reads."""
        strategy = self._choices.assignment.strategies[node.name]
        read = [
            self.read(ref, port) for ref, port in zip(node.operands, strategy.inputs, strict=True)
        ]
        refs = [Ref(node.name, index) for index in range(len(node.outputs))]
        shapes = tuple(
            self._choices.shape(ref, placement)
            for ref, placement in zip(refs, strategy.outputs, strict=True)
        )
        args, kwargs = local_arguments(node, shapes, self._graph.batch)
        local_op, told = strategy.local_op, ()
        found = stand_in(self._choices, node, strategy.outputs[0])
        if found is not None:
            local_op, told = found
        given = iter(read)
        outputs = tuple(self.define(refs, name, strategy.outputs))
        self._statements.append(
            Call(
                target=local_target(node.target),
                args=tuple(_substitute(arg, given) for arg in args),
                kwargs=(*((key, _substitute(value, given)) for key, value in kwargs), *told),
                outputs=outputs,
                is_list=returns_list(node.target),
                views=_views(node, read),
                keeps=_keeps(node, read, outputs),
                local_op=local_op,
                node=node.name,
            )
        )

    def define(
        self, refs: list[Ref], name: str, placements: Iterable[Placement]
    ) -> Iterator[Value]:
        """New values for tensors that the next statement assigns."""
        for index, (ref, placement) in enumerate(zip(refs, placements, strict=True)):
            value = self._value(ref, name if len(refs) == 1 else f"{name}_{index}", placement)
            self._operands[ref] = value
            yield value

    def add(self, statement: Statement) -> None:
        """Adds a statement whose values are defined."""
        self._statements.append(statement)

    def function(
        self,
        outputs: Iterable[Operand],
        made_by_blocks: Collection[str] = (),
        again: Again | None = None,
    ) -> Function:
        """The function as it stands, with these results.

        Args:
            made_by_blocks: names of the arguments that are results of blocks elsewhere.
            again: of a block, what runs again in its backward.
        """
        draws = any(DRAWS in operands(statement) for statement in self._statements)
        whole = Function(
            inputs=(*self._inputs, DRAWS) if draws else tuple(self._inputs),
            statements=tuple(self._statements),
            outputs=tuple(outputs),
            frees=((),) * len(self._statements),
        )
        return tidy(whole if again is None else marked(whole, again), made_by_blocks)

    def _value(self, ref: Ref, name: str, placement: Placement) -> Value:
        return Value(
            name=self._names.new(name),
            shape=self._choices.shape(ref, placement),
            dtype=self._graph.meta(ref).dtype,
            placement=placement,
        )

    def _convert(self, ref: Ref, source: Operand, change: Conversion) -> Operand:
        base = source.name if isinstance(source, Value) else "_".join(source.path[-2:])
        name = f"{base}_{_SUFFIX[change.forward]}"
        output = self._value(ref, name, change.target.placement)
        function, args, kwargs = _message(change)
        self._statements.append(
            Convert(function=function, source=source, args=args, kwargs=kwargs, output=output)
        )
        return output


def _message(change: Conversion) -> tuple[str, tuple[int, ...], tuple[tuple[str, int], ...]]:
    """Function of ``runtime.collectives``, its dims and its parts."""
    function = f"{change.forward}__{change.backward}"
    if change.backward == "identity":
        function = _GRADIENT_FREE.get(change.forward, function)
    old, new = change.source, change.target.placement
    if isinstance(old, Shard) and isinstance(new, Shard) and old.dim == new.dim:
        return function, (old.dim,), (("old_parts", old.parts), ("new_parts", new.parts))
    if isinstance(old, Shard) and isinstance(new, Shard):
        parts = (("split_parts", new.parts), ("concat_parts", old.parts))
        return function, (new.dim, old.dim), tuple(item for item in parts if item[1] != 1)
    shard = old if isinstance(old, Shard) else new
    if not isinstance(shard, Shard):
        return function, (), ()
    return function, (shard.dim,), (("parts", shard.parts),) if shard.parts != 1 else ()


def _views(node: OpNode, read: Sequence[Operand]) -> tuple[Operand | None, ...]:
    by_ref = dict(zip(node.operands, read, strict=True))
    bases = node.alias_of or (None,) * len(node.outputs)
    return tuple(None if base is None else by_ref[base] for base in bases)


def _keeps(node: OpNode, read: Sequence[Operand], outputs: Sequence[Value]) -> tuple[str, ...]:
    """Names of the values whose storage autograd keeps because of this call."""
    found: list[Operand] = []
    for saved in node.saved:
        if saved.operand is not None:
            found.append(read[saved.operand])
        elif saved.source is not None and saved.source.node == node.name:
            found.append(outputs[saved.source.index])
    return tuple(dict.fromkeys(value.name for value in found if isinstance(value, Value)))


def _substitute(value: Arg, operands: Iterator[Operand]) -> Expression:
    """An argument with its tensors as the operator reads them."""
    if isinstance(value, Ref):
        return next(operands)
    if isinstance(value, tuple):
        return tuple(_substitute(item, operands) for item in value)
    return _plain(value)


def _plain(value: Arg) -> Expression:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    assert not isinstance(value, (Ref, BatchInt)), "only plain values can stand here"
    return value
