"""How far plans of every kind are from one device: families of models by ways to train them.

``python -m benchmarks.parity_matrix`` prints a table of gloo processes (losses, gradients, weights
after a step of Adam), one of simulated ranks with random placements (losses, gradients), and the
losses of a hundred steps of a GPT with dropout. ``--only processes``, ``simulated`` or ``curves``
prints one of them, ``--families`` some columns. Ends with 1 where anything differs by more than
rounding.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch

from tests.parity.matrix.cells import Cell, run_family
from tests.parity.matrix.curves import RTOL, run_curves
from tests.parity.matrix.families import FAMILIES
from tests.parity.matrix.simulated import MESHES, simulate_family
from tests.parity.matrix.table import curve_lines, matrix_lines, summary
from tests.parity.matrix.ways import WAYS

PARTS = ("processes", "simulated", "curves")


def printed_matrix(
    title: str,
    families: Sequence[str],
    run: Callable[[str], Mapping[str, Cell]],
) -> bool:
    """Whether nothing is wrong; the table is printed when all families have run."""
    matrix = {}
    for family in families:
        print(f"{title}: {family}", file=sys.stderr, flush=True)
        matrix[family] = run(family)
    print(f"\n## {title}\n", *matrix_lines(matrix), "", summary(matrix), sep="\n", flush=True)
    return all(cell.ok or cell.refused for own in matrix.values() for cell in own.values())


def printed_curves() -> bool:
    curves = run_curves()
    print("\n## A hundred steps\n", *curve_lines(curves), sep="\n", flush=True)
    return all(curve.furthest <= RTOL for curve in curves.values())


def _quiet() -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    given = parser.parse_args(arguments)
    _quiet()
    right = True
    if "processes" in given.only:
        right &= printed_matrix("Processes", given.families, lambda f: run_family(f, list(WAYS)))
    if "simulated" in given.only:
        right &= printed_matrix(
            "Simulated ranks", given.families, lambda f: simulate_family(f, list(MESHES))
        )
    if "curves" in given.only:
        right &= printed_curves()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
