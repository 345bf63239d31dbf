"""The optimisation problem of one candidate: choose a strategy per node under one memory limit.

Placements are plain class numbers here: what they stand for is known to the builder alone. With
one choice c_v for every node v, the time to minimise is

    fixed + sum_v time(c_v) + sum_t sum_{(q, p) used on t} conversion_t[q][p] + sum_o exposed_o

where a pair (q, p) is *used* on tensor t if its producer leaves it in class q and at least one
reader wants class p: readers with equal wishes share one conversion. Messages o that run beside
compute are exposed by ``max(floor * messages, messages - window)``, both sums over choices.

The memory, in pages, is that of the worse of two moments, the backward and the optimizer's step:

    fixed + sum_v memory(c_v) + max(backward, sum_v step(c_v))
    backward = sum_s kept(s) + sum of used copies + transient + sum of peaks
    transient = max(largest transient(c_v), largest group of storages)

over the storages s with at least one *holder*; a group are the transient pages of the storages
that live together (the block being recomputed). A peak is the largest of several sums over choices
(the blocks whose weights are gathered). Pages are rounded up, never down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PAGE_BYTES = 65536


def pages(nbytes: float) -> int:
    """Whole pages that hold ``nbytes``."""
    return math.ceil(nbytes / PAGE_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One way to run a node: its time, the pages it always needs, those while it runs, and those
    at the optimizer's step."""

    label: str
    time_s: float = 0.0
    memory_pages: int = 0
    transient_pages: int = 0
    step_pages: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A decision: exactly one of its choices is taken."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """A use of a tensor: the class that each choice of ``node`` wants to read."""

    node: int
    ports: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A value: the class in which each choice of its producer leaves it, and who reads it.

    ``conversion_s[q][p]`` is the time from class ``q`` to port class ``p``, infinite if impossible;
    ``copy_pages[q][p]`` are the pages of the converted copy if it stays until the backward, or
    empty if no copy does.
    """

    name: str
    producer: int
    classes: tuple[int, ...]
    readers: tuple[Reader, ...]
    conversion_s: tuple[tuple[float, ...], ...]
    copy_pages: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Pages that stay while any holder keeps them: pairs of a node and the choices that do.

    ``transient_pages`` of the storages of one ``group`` are live together, once.
    """

    name: str
    kept_pages: int
    holders: tuple[tuple[int, frozenset[int]], ...]
    transient_pages: int = 0
    group: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The largest of several groups; a group adds up pages for every choice of its nodes."""

    name: str
    groups: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Messages beside compute; both are seconds for every choice of the nodes listed.

    Exposed are ``max(floor * messages, messages - window)`` seconds: at least the fraction
    ``floor``, and whatever outlasts the window of compute that can hide it.
    """

    name: str
    messages_s: tuple[tuple[int, tuple[float, ...]], ...]
    window_s: tuple[tuple[int, tuple[float, ...]], ...]
    floor: float
    fixed_messages_s: float = 0.0
    fixed_window_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """All decisions of one candidate. ``limit_pages`` None means that memory is not limited."""

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    storages: tuple[Storage, ...] = ()
    peaks: tuple[Peak, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    fixed_s: float = 0.0
    fixed_pages: int = 0
    limit_pages: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """An assignment (one choice number per node), its exact value, and the proven lower bound."""

    choices: tuple[int, ...]
    time_s: float
    memory_pages: int
    bound_s: float


def time_of(problem: Problem, choices: Sequence[int]) -> float:
    """Seconds of an assignment, infinite where a conversion is impossible."""
    total = problem.fixed_s
    total += sum(node.choices[c].time_s for node, c in zip(problem.nodes, choices, strict=True))
    for tensor in problem.tensors:
        total += sum(tensor.conversion_s[q][p] for q, p in used_pairs(tensor, choices))
    return total + sum(exposed_of(overlap, choices) for overlap in problem.overlaps)


def valued(problem: Problem, choices: tuple[int, ...], bound_s: float = -math.inf) -> Solution:
    """The solution that choices are, proven by a bound or, as given by default, by none."""
    time_s = time_of(problem, choices)
    return Solution(
        choices=choices,
        time_s=time_s,
        memory_pages=memory_of(problem, choices),
        bound_s=min(bound_s, time_s),
    )


def used_pairs(tensor: Tensor, choices: Sequence[int]) -> set[tuple[int, int]]:
    """The conversions of a tensor that an assignment needs, each once."""
    q = tensor.classes[choices[tensor.producer]]
    return {(q, reader.ports[choices[reader.node]]) for reader in tensor.readers}


def exposed_of(overlap: Overlap, choices: Sequence[int]) -> float:
    """Seconds of an overlap's messages that no compute hides."""
    messages, window = overlap_sums(overlap, choices)
    return max(overlap.floor * messages, messages - window)


def overlap_sums(overlap: Overlap, choices: Sequence[int]) -> tuple[float, float]:
    """Seconds of an overlap's messages, and of the compute that can hide them."""
    messages = overlap.fixed_messages_s
    messages += sum(times[choices[node]] for node, times in overlap.messages_s)
    window = overlap.fixed_window_s
    window += sum(times[choices[node]] for node, times in overlap.window_s)
    return messages, window


def memory_of(problem: Problem, choices: Sequence[int]) -> int:
    """Pages of an assignment at the worse of the two moments."""
    taken = [node.choices[c] for node, c in zip(problem.nodes, choices, strict=True)]
    always = problem.fixed_pages + sum(choice.memory_pages for choice in taken)
    backward = sum(s.kept_pages for s in held_storages(problem, choices))
    backward += copies_of(problem, choices)
    backward += transient_of(problem, choices)
    backward += sum(peak_of(peak, choices) for peak in problem.peaks)
    return always + max(backward, sum(choice.step_pages for choice in taken))


def copies_of(problem: Problem, choices: Sequence[int]) -> int:
    """Pages of the converted copies that stay."""
    return sum(
        tensor.copy_pages[q][p]
        for tensor in problem.tensors
        if tensor.copy_pages
        for q, p in used_pairs(tensor, choices)
    )


def held_storages(problem: Problem, choices: Sequence[int]) -> tuple[Storage, ...]:
    """The storages that some holder keeps."""
    return tuple(s for s in problem.storages if any(choices[v] in keep for v, keep in s.holders))


def transient_of(problem: Problem, choices: Sequence[int]) -> int:
    """Pages of the largest short-lived thing: one operator at work, or one block recomputed."""
    groups: dict[str, int] = {}
    for storage in held_storages(problem, choices):
        groups[storage.group] = groups.get(storage.group, 0) + storage.transient_pages
    taken = (node.choices[c] for node, c in zip(problem.nodes, choices, strict=True))
    return max([c.transient_pages for c in taken] + list(groups.values()), default=0)


def peak_of(peak: Peak, choices: Sequence[int]) -> int:
    """Pages of a peak's largest group."""
    sums = (sum(pages_of[choices[v]] for v, pages_of in group) for group in peak.groups)
    return max(sums, default=0)
