"""The program of one rank: straight-line functions over local tensors.

Every pipeline stage has a function for its part of the root of the model and one for the values
that are counted ahead of it; without a pipeline there is one stage. There is one function more for
every block that differs from those before it. A function is a list of statements, each assigning
values once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.sharding.placement import Placement, Replicate
from autoplan.trace.graph import TorchValue

Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A local variable: a tensor of this shape on every rank, a piece as ``placement`` says."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    placement: Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A parameter or buffer of the module, at ``path`` below it, as it is stored on this rank."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class DrawNumber:
    """Number of a draw in a block: so many after the first of the block instance."""

    after: int


@dataclass(frozen=True, slots=True)
class Axis:
    """This rank's place on a mesh axis, as an argument."""

    name: str


DRAWS = Value(name="draws", shape=(), dtype="", placement=Replicate())
"""The argument of functions that draw random numbers: the ``runtime.random.Draws`` to draw by."""

EVALUATE = "evaluate"
"""The method of modules that runs them without a loss."""

Operand = Value | Held
Expression = (
    Operand
    | TorchValue
    | DrawNumber
    | Axis
    | bool
    | int
    | float
    | str
    | None
    | tuple["Expression", ...]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """An operator on local tensors.

    Attributes:
        is_list: whether it returns a list or tuple of tensors.
        views: for each output the operand whose storage it shares, or None.
        keeps: names of the operands and outputs that autograd keeps for the backward.
        local_op: the function of ``autoplan.runtime`` that stands in for ``target``.
        node: the graph's node, for messages.
        again: whether it runs once more in the backward.
    """

    target: str
    args: tuple[Expression, ...]
    kwargs: tuple[tuple[str, Expression], ...]
    outputs: tuple[Value, ...]
    is_list: bool
    views: tuple[Operand | None, ...]
    keeps: tuple[str, ...]
    local_op: str | None = None
    node: str = field(default="", compare=False)
    again: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Convert:
    """A change of placement on ``tp``, by a function of ``autoplan.runtime.collectives``.

    ``args`` and ``kwargs`` are dims and parts; ``args`` stand before the axis. ``again`` says
    whether it runs once more in the backward.
    """

    function: str
    source: Operand
    args: tuple[int, ...]
    kwargs: tuple[tuple[str, int], ...]
    output: Value
    again: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A tensor whose values are part of the model's code."""

    values: Expression
    output: Value


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCall:
    """A call of the block instance at ``path``, recomputed in the backward or not.

    ``is_random`` is said where it draws from PyTorch's own generator, ``method`` where not the
    block itself is called.
    """

    path: Path
    args: tuple[Operand, ...]
    outputs: tuple[Value, ...]
    recomputed: bool
    is_random: bool
    method: str = ""


Statement = Call | Convert | Constant | BlockCall


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """Statements from ``inputs`` to ``outputs``; ``frees`` names what each leaves to delete.

    A function that draws random numbers takes ``DRAWS`` as its last input.
    """

    inputs: tuple[Value, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[Operand, ...]
    frees: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockClass:
    """Blocks that run one function; ``kind`` is the kind they belong to."""

    name: str
    kind: str
    paths: tuple[str, ...]
    function: Function


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """A tensor between two stages: its local shape, and whether a gradient comes back for it."""

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StageProgram:
    """What one pipeline stage runs beside its blocks.

    Attributes:
        name: of its class.
        blocks: paths of its blocks, in order.
        forward: takes what the stage receives, its ``inputs``, then its ``counts``; returns what it
            sends, or the loss.
        count: takes ``inputs``.
        receives, sends: what crosses from the stage before and to the stage behind.
        inputs: positions, among the inputs of the graph, of those that the stage reads.
        counts: the last arguments of ``forward``.
        tensors: names of the parameters and buffers that the stage holds.
    """

    name: str
    blocks: tuple[str, ...]
    forward: Function
    count: Function
    receives: tuple[Boundary, ...]
    sends: tuple[Boundary, ...]
    inputs: tuple[int, ...]
    counts: tuple[Value, ...]
    tensors: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """All functions of all ranks; one that evaluates has no loss and counts nothing."""

    stages: tuple[StageProgram, ...]
    blocks: tuple[BlockClass, ...]
    evaluates: bool = False

    @property
    def functions(self) -> tuple[Function, ...]:
        """Blocks first, then the stages, as they are printed."""
        stages = (function for stage in self.stages for function in (stage.count, stage.forward))
        return (*(block.function for block in self.blocks), *stages)

    @property
    def class_of(self) -> Mapping[str, str]:
        """Class name by block path."""
        return {path: block.name for block in self.blocks for path in block.paths}


def operands(statement: Statement) -> tuple[Operand, ...]:
    """The tensors that a statement reads, in order, nested lists flattened."""
    if isinstance(statement, Call):
        return _flatten((*statement.args, *(value for _, value in statement.kwargs)))
    if isinstance(statement, Convert):
        return (statement.source,)
    return statement.args if isinstance(statement, BlockCall) else ()


def results(statement: Statement) -> tuple[Value, ...]:
    """The values that a statement assigns."""
    if isinstance(statement, (Call, BlockCall)):
        return statement.outputs
    return (statement.output,)


def is_renaming(convert: Convert) -> bool:
    """Whether the result shares memory with what is converted."""
    return convert.function.startswith("identity__")


def runs_again(statement: Statement) -> bool:
    """Whether a statement of a block runs once more in the block's backward."""
    return isinstance(statement, (Call, Convert)) and statement.again


def _flatten(value: Expression) -> tuple[Operand, ...]:
    if isinstance(value, (Value, Held)):
        return (value,)
    if isinstance(value, tuple):
        return tuple(operand for item in value for operand in _flatten(item))
    return ()
