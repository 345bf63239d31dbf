"""Random small problems, and their best answers by trying every assignment."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

from autoplan.search.problem import (
    Choice,
    Node,
    Overlap,
    Peak,
    Problem,
    Reader,
    Storage,
    Tensor,
    memory_of,
)


def exhaustive(problem: Problem) -> float | None:
    """Best time within the limit over every assignment, computed from the definition."""
    best = None
    for choices in itertools.product(*(range(len(n.choices)) for n in problem.nodes)):
        time_s, memory = value_of(problem, choices)
        fits = problem.limit_pages is None or memory <= problem.limit_pages
        if fits and time_s < math.inf and (best is None or time_s < best):
            best = time_s
    return best


def value_of(problem: Problem, choices: tuple[int, ...]) -> tuple[float, int]:
    """Time and memory, written apart from ``time_of`` and ``memory_of``."""
    picked = [problem.nodes[v].choices[c] for v, c in enumerate(choices)]
    time_s, memory, kept = problem.fixed_s, problem.fixed_pages, 0
    for choice in picked:
        time_s += choice.time_s
        memory += choice.memory_pages
    for tensor in problem.tensors:
        paid = set()
        for reader in tensor.readers:
            pair = (tensor.classes[choices[tensor.producer]], reader.ports[choices[reader.node]])
            if pair not in paid:
                paid.add(pair)
                time_s += tensor.conversion_s[pair[0]][pair[1]]
                kept += tensor.copy_pages[pair[0]][pair[1]] if tensor.copy_pages else 0
    transient = {"": 0}
    for storage in problem.storages:
        if [v for v, keep in storage.holders if choices[v] in keep]:
            kept += storage.kept_pages
            transient.setdefault(storage.group, 0)
            transient[storage.group] += storage.transient_pages
    for overlap in problem.overlaps:
        sent = overlap.fixed_messages_s + sum(t[choices[v]] for v, t in overlap.messages_s)
        room = overlap.fixed_window_s + sum(t[choices[v]] for v, t in overlap.window_s)
        time_s += sent - room if sent - room > overlap.floor * sent else overlap.floor * sent
    peaks = [*transient.values(), *(choice.transient_pages for choice in picked)]
    kept += max(peaks)
    for peak in problem.peaks:
        kept += max(sum(table[choices[v]] for v, table in group) for group in peak.groups)
    return time_s, memory + max(kept, sum(choice.step_pages for choice in picked))


def random_problem(seed: int) -> Problem:
    rng = random.Random(seed)
    count = rng.randint(3, 6)
    most = 4 if count < 5 else 3
    sizes = [rng.randint(1 if rng.random() < 0.1 else 2, most) for _ in range(count)]
    nodes = tuple(
        Node(
            name=f"n{v}",
            choices=tuple(
                Choice(
                    label=str(c),
                    time_s=rng.randint(0, 50) * 1e-5,
                    memory_pages=rng.choice((0, rng.randint(0, 40))),
                    transient_pages=rng.choice((0, rng.randint(0, 30))),
                    step_pages=rng.choice((0, rng.randint(0, 90))),
                )
                for c in range(size)
            ),
        )
        for v, size in enumerate(sizes)
    )
    tensors = tuple(_random_tensor(rng, u, sizes) for u in range(count - 1))
    storages = tuple(_random_storage(rng, k, sizes) for k in range(rng.randint(0, 4)))
    overlaps = tuple(_random_overlap(rng, k, sizes) for k in range(rng.randint(0, 2)))
    problem = Problem(
        nodes=nodes,
        tensors=tensors,
        storages=storages,
        peaks=tuple(_random_peak(rng, k, sizes) for k in range(rng.randint(0, 2))),
        overlaps=overlaps,
        fixed_s=rng.randint(0, 9) * 1e-5,
        fixed_pages=rng.randint(0, 9),
    )
    if rng.random() < 0.3:
        return problem
    everything = itertools.product(*(range(size) for size in sizes))
    reached = sorted(memory_of(problem, choices) for choices in everything)
    limit = reached[int(rng.random() ** 2 * (len(reached) - 1))] - (rng.random() < 0.15)
    return replace(problem, limit_pages=limit)


def _random_tensor(rng: random.Random, producer: int, sizes: list[int]) -> Tensor:
    later = list(range(producer + 1, len(sizes)))
    readers = rng.sample(later, k=min(len(later), rng.randint(1, 3)))
    if rng.random() < 0.2:
        readers.append(readers[0])
    outs, ports = rng.randint(1, 3), rng.randint(1, 3)
    impossible, copied = rng.random() < 0.1, rng.random() < 0.3
    return Tensor(
        name=f"t{producer}",
        producer=producer,
        classes=tuple(rng.randrange(outs) for _ in range(sizes[producer])),
        readers=tuple(
            Reader(node=v, ports=tuple(rng.randrange(ports) for _ in range(sizes[v])))
            for v in readers
        ),
        conversion_s=tuple(
            tuple(
                math.inf if impossible and rng.random() < 0.2 else rng.choice((0, 1, 7, 40)) * 1e-5
                for _ in range(ports)
            )
            for _ in range(outs)
        ),
        copy_pages=tuple(
            tuple(rng.choice((0, 5, 30)) for _ in range(ports)) for _ in range(outs * copied)
        ),
    )


def _random_storage(rng: random.Random, number: int, sizes: list[int]) -> Storage:
    holders = rng.sample(range(len(sizes)), k=rng.randint(1, 3))
    return Storage(
        name=f"s{number}",
        kept_pages=rng.randint(0, 40),
        transient_pages=rng.choice((0, rng.randint(0, 30))),
        group=rng.choice(("", "a", "b")),
        holders=tuple(
            (v, frozenset(c for c in range(sizes[v]) if rng.random() < 0.5)) for v in holders
        ),
    )


def _random_peak(rng: random.Random, number: int, sizes: list[int]) -> Peak:
    def group() -> tuple[tuple[int, tuple[int, ...]], ...]:
        chosen = rng.sample(range(len(sizes)), k=rng.randint(1, 2))
        return tuple((v, tuple(rng.randint(0, 30) for _ in range(sizes[v]))) for v in chosen)

    return Peak(name=f"p{number}", groups=tuple(group() for _ in range(rng.randint(1, 3))))


def _random_overlap(rng: random.Random, number: int, sizes: list[int]) -> Overlap:
    def seconds() -> tuple[tuple[int, tuple[float, ...]], ...]:
        chosen = rng.sample(range(len(sizes)), k=rng.randint(0, 3))
        return tuple((v, tuple(rng.randint(0, 60) * 1e-5 for _ in range(sizes[v]))) for v in chosen)

    return Overlap(
        name=f"o{number}", messages_s=seconds(), window_s=seconds(), floor=rng.choice((0.0, 0.3)),
        fixed_messages_s=rng.choice((0.0, 2e-4)), fixed_window_s=rng.choice((0.0, 2e-4)),
    )  # fmt: skip
