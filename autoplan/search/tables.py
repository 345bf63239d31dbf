"""The terms of a ``Problem`` as tables over few decisions, which elimination adds up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autoplan.search.elimination import Costs, Scope, Table, along
from autoplan.search.problem import Problem, Storage, Tensor

Rows = Iterable[tuple[int, Sequence[float]]]


def scopes(problem: Problem) -> tuple[Scope, ...]:
    """The decisions that conversions tie together."""
    return tuple(_scope(tensor) for tensor in problem.tensors if _is_priced(tensor.conversion_s))


def conversion_tables(problem: Problem) -> tuple[Table, ...]:
    """Seconds of all conversions."""
    return tuple(
        _of_tensor(tensor, tensor.conversion_s)
        for tensor in problem.tensors
        if _is_priced(tensor.conversion_s)
    )


def page_scopes(problem: Problem) -> tuple[Scope, ...]:
    """The decisions that storages and copies tie together."""
    copies = (_scope(tensor) for tensor in problem.tensors if _is_priced(tensor.copy_pages))
    return (*(_held_scope(storage) for storage in problem.storages if _is_kept(storage)), *copies)


def page_tables(problem: Problem, group: str | None) -> tuple[Table, ...]:
    """Pages of storages and copies in the backward.

    Args:
        group: the group of storages whose transient pages count as well.
    """
    sizes = [len(node.choices) for node in problem.nodes]
    copies = (
        _of_tensor(tensor, tensor.copy_pages)
        for tensor in problem.tensors
        if _is_priced(tensor.copy_pages)
    )
    held = (_of_storage(storage, sizes, group) for storage in problem.storages if _is_kept(storage))
    return (*held, *copies)


def add_rows(single: list[Costs], weight: float, rows: Rows) -> None:
    """Adds ``weight`` times the rows to the costs of the decisions they are about."""
    for number, row in rows if weight else ():
        single[number] = single[number] + weight * np.array(row)


def _is_priced(table: Sequence[Sequence[float]]) -> bool:
    return any(map(any, table))


def _is_kept(storage: Storage) -> bool:
    return any(keep for _, keep in storage.holders)


def _scope(tensor: Tensor) -> Scope:
    return tuple(sorted({tensor.producer, *(reader.node for reader in tensor.readers)}))


def _held_scope(storage: Storage) -> Scope:
    return tuple(sorted({number for number, keep in storage.holders if keep}))


def _of_tensor(tensor: Tensor, costs: Sequence[Sequence[float]]) -> Table:
    """What the conversions of a tensor cost; readers with equal wishes pay once."""
    scope, by_pair = _scope(tensor), np.array(costs, dtype=float)
    left = along(tensor.producer, scope, tensor.classes)
    readers = dict.fromkeys(tensor.readers)
    ports = [along(reader.node, scope, reader.ports) for reader in readers]
    total = np.zeros(np.broadcast_shapes(left.shape, *(port.shape for port in ports)))
    for number, port in enumerate(ports):
        unpaid = np.ones((1,) * len(scope), dtype=bool)
        for before in ports[:number]:
            unpaid = unpaid & (port != before)
        total += np.where(unpaid, by_pair[left, port], 0.0)
    return Table(scope, total)


def _of_storage(storage: Storage, sizes: Sequence[int], group: str | None) -> Table:
    scope = _held_scope(storage)
    held = np.zeros((1,) * len(scope), dtype=bool)
    for number, keep in storage.holders:
        if keep:
            held = held | (along(number, scope, [c in keep for c in range(sizes[number])]) > 0)
    pages = storage.kept_pages + (storage.transient_pages if storage.group == group else 0)
    return Table(scope, np.where(held, float(pages), 0.0))
