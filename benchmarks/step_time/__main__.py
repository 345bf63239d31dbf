"""``python -m benchmarks.step_time``: emitted modules beside recipes written by hand in PyTorch.

On 2, 4 and 8 processes of this machine, with gloo, a small decoder is trained in float32 by each
recipe and by the plan of the same mesh; then come the planner's own choices, beside every recipe.
``seconds`` and ``bytes`` are ratios of ours to theirs. Ends with 1 where losses differ.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from benchmarks.step_time.measure import Figures, Make, measured, ratio
from benchmarks.step_time.planned import by_plan, plan_freely, plan_like, words
from benchmarks.step_time.recipes import RECIPES, by_hand

_FREE = "free"
_LOSS_RTOL = 1e-4


def contest(ranks: int, rounds: int, cluster: str) -> bool:
    """Measures and prints one number of ranks; whether all losses agree."""
    recipes = [recipe for recipe in RECIPES if recipe.ranks == ranks]
    makers: dict[str, Make] = {r.name: partial(by_hand, r) for r in recipes}
    makers |= {f"plan {r.name}": partial(by_plan, plan_like(r, cluster)) for r in recipes}
    free = plan_freely(ranks, cluster)
    found = measured(makers | {_FREE: partial(by_plan, free)}, ranks, rounds)
    for recipe in recipes:
        _print(
            ranks, recipe.name, "the same mesh", found[f"plan {recipe.name}"], found[recipe.name]
        )
    for recipe in recipes:
        _print(ranks, recipe.name, words(free), found[_FREE], found[recipe.name])
    losses = [figures.loss for figures in found.values()]
    return max(losses) - min(losses) <= _LOSS_RTOL * max(losses)


def _print(ranks: int, recipe: str, plan: str, ours: Figures, theirs: Figures) -> None:
    seconds, nbytes = ratio(ours, theirs), ours.peak_bytes / theirs.peak_bytes
    theirs_ms = sorted(theirs.step_s)[len(theirs.step_s) // 2] * 1e3
    print(
        f"{ranks:5} {recipe:18} {theirs_ms:6.0f} {plan:42} "
        f"{seconds.median:7.3f} ({seconds.low:.3f} to {seconds.high:.3f}) {nbytes:7.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time beside recipes written by hand")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], choices=(2, 4, 8))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cluster", default="cpu-gloo", help="profile that plans are made for")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'ranks':5} {'recipe':18} {'its ms':>6} {'plan':42} {'seconds (95 % interval)':>26} "
          f"{'bytes':>8}")  # fmt: skip
    agreed = [contest(ranks, given.rounds, given.cluster) for ranks in given.ranks]
    if not all(agreed):
        raise SystemExit("losses differ between a plan and a recipe")


if __name__ == "__main__":
    main()
