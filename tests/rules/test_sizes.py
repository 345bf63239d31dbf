"""All strategies of all operators, at sizes that the ranks divide and at sizes they do not.

Sizes of one example are all of one kind: multiples of the ranks, none of them, smaller than the
ranks, or even with zeros among them. Where a size does not divide, no strategy that splits it may
be offered; whatever is offered must equal one device, forward and backward.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest
import torch

from tests.rules.draw import Draw
from tests.rules.oracle import (
    Example,
    check_all_strategies,
    graph_of,
    run_whole,
    tensors_of,
)
from tests.rules.test_operators import CALLS

KINDS = ("even", "uneven", "smaller", "zero")
EXAMPLES = 4
ATTEMPTS = 40


class SizedDraw(Draw):
    """Draws at random, sizes of one kind."""

    def __init__(self, kind: str, seed: int) -> None:
        self._kind, self._random = kind, random.Random(seed)
        self.ranks = self._random.choice((2, 3, 4))
        torch.manual_seed(seed)

    def of(self, *choices):
        return self._random.choice(choices)

    def size(self) -> int:
        ranks = self.ranks
        return self.of(*{
            "even": (ranks, 2 * ranks),
            "uneven": (ranks + 1, 2 * ranks + 1),
            "smaller": tuple(range(1, ranks)),
            "zero": (0, ranks, 2 * ranks),
        }[self._kind])  # fmt: skip

    def order(self, rank: int) -> list[int]:
        return self._random.sample(range(rank), rank)


def drawn(target: str, kind: str, seed: int) -> tuple[Example, int] | None:
    """An example, and its ranks; None where torch itself takes no such sizes.

    Convolutions without any channels are left out as well: there is no number of groups of them.
    """
    draw = SizedDraw(kind, seed)
    try:
        made = CALLS[target](draw, target)
        tensors = tensors_of(made)
        run_whole(made, tensors, graph_of(made, tensors).nodes[-1])
    except (IndexError, ValueError, RuntimeError, ZeroDivisionError):
        if kind != "zero":
            raise
        return None
    empty = target.startswith("aten.conv") and not tensors[1].numel()
    return None if empty else (made, draw.ranks)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", sorted(CALLS))
def test_strategies_equal_one_device_at_sizes(target, kind):
    examples = filter(None, (drawn(target, kind, seed) for seed in range(ATTEMPTS)))
    checked = [check_all_strategies(*made) for made in islice(examples, EXAMPLES)]
    assert checked or kind == "zero"
