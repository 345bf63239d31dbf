"""Arguments of an operator on shards: sizes follow the local shapes of its outputs.

Which arguments are sizes is read from the operator's schema, by name: the ``size`` or ``shape`` of
a view or a new tensor, the ``sizes`` of an unflattened dim, the pieces of a split, the ``length``
of a narrow, the ``groups`` of channels, the ``repeats`` of what is there once. The ``size`` of an
affine grid is that of the image, of which the grid has the samples alone. A ``BatchInt``
anywhere else is arithmetic on the global batch. In operators of other libraries these names mean
whatever they like, and arguments stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.codegen.operators import arguments
from autoplan.trace.graph import Arg, BatchInt, OpNode

Shape = tuple[int, ...]

_STRICT_VIEWS = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
    "aten.view_as.default": "aten.reshape_as.default",
}

_GROUPS = ("groups", "num_groups")
_GRID = "aten.affine_grid_generator.default"


def local_target(target: str) -> str:
    """The operator to run on shards: a strict view would fail on other strides than the model's.

    A change of placement returns contiguous tensors, whatever the strides before.
    """
    return _STRICT_VIEWS.get(target, target)


def local_arguments(
    node: OpNode, outputs: tuple[Shape, ...], batch: int
) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    """Arguments and keyword arguments of a call whose outputs have these local shapes."""
    given = arguments(node)
    names = tuple(given)

    def localise(name: str, value: Arg) -> Arg:
        if not node.target.startswith("aten."):
            return _resolve(value, batch)
        if node.target == _GRID and isinstance(value, tuple):
            return outputs[0][0], *value[1:]
        if name in _GROUPS and isinstance(value, int):
            return _local_groups(value, node.outputs[0].shape, outputs[0])
        if name == "repeats" and isinstance(value, tuple):
            return _local_repeats(value, node.outputs[0].shape, outputs[0], batch)
        if name == "repeats" and isinstance(value, BatchInt) and isinstance(given["dim"], int):
            return _share(
                value, batch, node.outputs[0].shape[given["dim"]], outputs[0][given["dim"]]
            )
        size = _size(name, value, given, outputs)
        return _resolve(value if size is None else size, batch)

    args = tuple(localise(name, value) for name, value in zip(names, node.args, strict=False))
    return args, tuple((name, localise(name, value)) for name, value in node.kwargs)


def _local_groups(groups: int, whole: Shape, local: Shape) -> int:
    """Of groups of channels, dim 1, a rank has as many as of channels; one group is never split."""
    return groups * local[1] // whole[1] if groups > 1 else 1


def _local_repeats(repeats: tuple[Arg, ...], whole: Shape, local: Shape, batch: int) -> Arg:
    """Dims of samples, and those of a single index, as often as a rank has them; others as said."""
    return tuple(
        _share(count, batch, size, here)
        if isinstance(count, BatchInt)
        else here
        if count == size
        else count
        for count, size, here in zip(repeats, whole, local, strict=True)
    )


def _share(count: BatchInt, batch: int, whole: int, local: int) -> int:
    """Of a count of samples, what falls to a rank that has ``local`` of ``whole`` indices."""
    return count.coefficient * batch * local // whole


def _size(name: str, value: Arg, given: Mapping[str, Arg], outputs: tuple[Shape, ...]) -> Arg:
    """The local value of an argument that is a size; None when it is not one."""
    if name in ("size", "shape") and isinstance(value, tuple):
        return outputs[0]
    dim = given.get("dim")
    if not isinstance(dim, int):
        return None
    if name == "sizes" and isinstance(value, tuple):
        first = dim % (len(outputs[0]) - len(value) + 1)
        return outputs[0][first : first + len(value)]
    if name in ("split_size", "split_sizes"):
        pieces = tuple(shape[dim] for shape in outputs)
        return pieces if isinstance(value, tuple) else pieces[0]
    if name == "length":
        return outputs[0][dim]
    if name == "end" and isinstance(value, BatchInt):
        start = given.get("start") or 0
        return start + outputs[0][dim] if isinstance(start, int) else None
    return None


def _resolve(value: Arg, batch: int) -> Arg:
    if isinstance(value, BatchInt):
        return value.at(batch)
    if isinstance(value, tuple):
        return tuple(_resolve(item, batch) for item in value)
    return value
