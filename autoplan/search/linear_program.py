"""A linear or mixed-integer program as lists of numbers, handed to HiGHS through OR-Tools MathOpt.

Variables are numbered from zero, all of them non-negative. HiGHS is deterministic here; its number
of threads cannot be set through MathOpt. OR-Tools takes long to import, and many plans need no
program, so the first program that is solved imports it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.math_opt.model_pb2 import ModelProto

Terms = Iterable[tuple[float, int]]


class LinearProgram:
    """Minimise ``cost . x`` under rows ``lower <= terms <= upper``."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._rows: list[tuple[float, float, dict[int, float]]] = []

    def variable(
        self, *, cost: float = 0.0, lower: float = 0.0, upper: float = math.inf,
        integer: bool = False,
    ) -> int:  # fmt: skip
        """Adds a variable; returns its number."""
        self.cost.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self.cost) - 1

    def row(self, terms: Terms, *, lower: float = -math.inf, upper: float = math.inf) -> None:
        """Adds a constraint; terms of one variable add up."""
        weights: dict[int, float] = {}
        for weight, number in terms:
            weights[number] = weights.get(number, 0.0) + weight
        self._rows.append((lower, upper, weights))

    def minimise(self, *, relative_gap: float) -> tuple[list[float], float] | None:
        """Values of the variables and the proven bound of the cost; None when infeasible.

        Raises:
            RuntimeError: the solver gave up.
        """
        from ortools.math_opt.python import mathopt

        model = mathopt.Model.from_model_proto(self._proto())
        params = mathopt.SolveParameters(relative_gap_tolerance=relative_gap)
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=params)
        reason = result.termination.reason
        if reason == mathopt.TerminationReason.INFEASIBLE:
            return None
        if reason != mathopt.TerminationReason.OPTIMAL:
            raise RuntimeError(f"HiGHS ended without an answer: {result.termination.detail}")
        values = result.variable_values(list(model.variables()))
        return values, result.termination.objective_bounds.dual_bound

    def _proto(self) -> ModelProto:
        from ortools.math_opt.model_pb2 import ModelProto

        proto = ModelProto()
        count = len(self.cost)
        proto.variables.ids.extend(range(count))
        proto.variables.lower_bounds.extend(self._lower)
        proto.variables.upper_bounds.extend(self._upper)
        proto.variables.integers.extend(self._integer)
        priced = [number for number, cost in enumerate(self.cost) if cost]
        proto.objective.linear_coefficients.ids.extend(priced)
        proto.objective.linear_coefficients.values.extend(self.cost[n] for n in priced)
        proto.linear_constraints.ids.extend(range(len(self._rows)))
        proto.linear_constraints.lower_bounds.extend(row[0] for row in self._rows)
        proto.linear_constraints.upper_bounds.extend(row[1] for row in self._rows)
        matrix = proto.linear_constraint_matrix
        for row, (_, _, weights) in enumerate(self._rows):
            numbers = sorted(number for number, weight in weights.items() if weight)
            matrix.row_ids.extend([row] * len(numbers))
            matrix.column_ids.extend(numbers)
            matrix.coefficients.extend(weights[number] for number in numbers)
        return proto
