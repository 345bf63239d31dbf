"""Verifies a plan on this machine: cuts it down, runs it on processes, compares.

The program is run in float64 where the model's operators allow it, else in float32: there a fault
stands out from rounding, and placements are the same in every precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.codegen.orders import check_orders
from autoplan.codegen.pipeline import emit_program
from autoplan.codegen.runnable import obstacle
from autoplan.errors import PlanError, first_line
from autoplan.plan import Plan
from autoplan.progress import Progress
from autoplan.runtime.comparison import loss_on
from autoplan.runtime.modes import lowest_dtype
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.scripts import world_of_plan
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.trace.inputs import BatchDims
from autoplan.trace.precision import COMPUTE_DTYPES
from autoplan.verdict import Difference, Verification
from autoplan.verification.cut import carried_over, has_kinds_of
from autoplan.verification.degrees import small_degrees, words
from autoplan.verification.inputs import draw_inputs, in_form
from autoplan.verification.model import small_cases, with_weights
from autoplan.verification.precision import cast, computed_in
from autoplan.verification.processes import COLLECTIVE_TIMEOUT_S, RanksFailedError, answer_of_ranks
from autoplan.zoo import ModelUnderPlan

DEADLINE_S, TIMEOUT_S = 600.0, COLLECTIVE_TIMEOUT_S
"""Of all ranks together, and of one that waits for another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """What every rank runs, alone and together."""

    plan: Plan
    graph: OpGraph
    model: nn.Module
    batch: Any
    loss_fn: Callable[[Any, Any], Tensor] | None
    lowest: torch.dtype


def verify_plan(
    plan: Plan,
    case: ModelUnderPlan,
    graph: OpGraph,
    *,
    ranks: int | None,
    batch_dims: BatchDims | None,
    tell: Progress,
) -> Verification:
    """Runs a plan's program on gloo processes, cut down where it must be.

    Args:
        graph: of the whole model, as the plan was made for.

    Raises:
        PlanError: a model that cannot be run here.
        UnsupportedModelError: a program that cannot run on these ranks.
    """
    reason = obstacle(graph, plan)
    if reason is not None:
        raise PlanError(reason)
    degrees = small_degrees(plan, ranks)
    orders = check_orders(world_of_plan(emit_program(graph, plan), plan))
    tell(0.2, "tracing what is run")
    for small, cuts in small_cases(case, graph, plan, degrees):
        model, traced, lowest = _traced(small, plan, batch_dims, degrees.global_batch)
        if has_kinds_of(traced, graph):
            trial = _Trial(
                plan=carried_over(plan, graph, traced, degrees),
                graph=traced,
                model=model,
                batch=in_form(small, draw_inputs(traced, small, degrees.global_batch)),
                loss_fn=small.loss_fn,
                lowest=lowest,
            )
            tell(0.4, f"running {degrees.world_size} ranks")
            verdict = _outcome(trial, degrees.world_size)
            return replace(verdict, cuts=(*cuts, *words(plan, degrees)), orders=orders)
    raise PlanError(
        f"{plan.job.model.name} cut down has other kinds of blocks than the whole: verify a plan "
        "of a smaller model of the same code"
    )


def _traced(
    case: ModelUnderPlan, plan: Plan, batch_dims: BatchDims | None, batch: int
) -> tuple[nn.Module, OpGraph, torch.dtype]:
    """The model with weights in the highest precision that it runs in, and its graph computed so.

    Returns:
        At last the lowest precision of any value that the model computes: some cast to float32.

    Raises:
        PlanError: it runs in none.
    """
    refusal = ""
    given = with_weights(case.model)
    config = getattr(given, "config", None)
    if config is not None and hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    options: dict[str, Any] = {
        "loss_fn": case.loss_fn,
        "batch_dims": batch_dims,
        "global_batch": batch,
        "batch_norm": plan.job.batch_norm,
        "autocast_on": "cpu",
    }
    planned = COMPUTE_DTYPES[plan.job.precision]
    graph = capture(given, case.example_inputs, dtype=planned, **options)
    for dtype in (torch.float64, torch.float32):
        model = copy.deepcopy(given)._apply(partial(cast, dtype=dtype))
        computed = computed_in(graph, str(dtype).removeprefix("torch."))
        try:
            with torch.no_grad():
                loss_on(model, in_form(case, draw_inputs(computed, case, 2)), case.loss_fn)
        except (RuntimeError, TypeError, IndexError) as error:
            refusal = first_line(error)
            continue
        own = capture(model, _cast(case.example_inputs, dtype), **options)
        return model, computed, lowest_dtype(own)
    raise PlanError(f"{type(case.model).__name__} does not run on the CPU here ({refusal})")


def _cast(example: Any, dtype: torch.dtype) -> Any:
    """Example inputs with floating-point tensors of another dtype."""
    if isinstance(example, Tensor):
        return cast(example, dtype)
    if isinstance(example, dict):
        return {name: _cast(value, dtype) for name, value in example.items()}
    if isinstance(example, tuple):
        return tuple(_cast(value, dtype) for value in example)
    return example


def _outcome(trial: _Trial, world_size: int) -> Verification:
    try:
        found = answer_of_ranks(
            lambda: _on_rank(trial), world_size, deadline_s=DEADLINE_S, timeout_s=TIMEOUT_S
        )
    except RanksFailedError as error:
        return Verification(ranks=world_size, precision="", differences=(), fault=str(error))
    return Verification(
        ranks=world_size,
        precision=found["precision"],
        differences=tuple(Difference(**difference) for difference in found["differences"]),
    )


def _on_rank(trial: _Trial) -> dict[str, Any]:
    """What one rank finds, as JSON values."""
    pm = parallelize(trial.model, trial.graph, trial.plan)
    found = pm.verify(trial.model, trial.batch, trial.loss_fn, trial.lowest)
    differences = [asdict(difference) for difference in found.differences]
    return {"precision": found.precision, "differences": differences}
