"""The standard recipes, as pins on configurations, and the kinds of plans that a winner beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoplan.job import Job
from autoplan.search.pipeline.configs import Config
from autoplan.search.regions.menus import Recompute

Accepts = Callable[[Config], bool]

RUNNER_UP = "a good plan: "
"""How names of plans begin that are the best of one configuration of a kind, which need not be the
best configuration of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Configurations that share something, and how their blocks recompute.

    Attributes:
        name: of a plan, by its configuration.
    """

    name: Callable[[Config], str]
    accepts: Accepts
    recompute: tuple[Recompute, ...] = ("none", "full")


def recipes(job: Job, degrees: tuple[int, ...]) -> Iterator[Kind]:
    """DDP, FSDP, hybrid sharding, Megatron's tensor and pipeline parallelism, and all with ZeRO 1.

    ``degrees`` are the admissible ones of ``tp``. Each takes its best microbatch, and all or no
    blocks recomputed. One GPU needs no recipe.
    """
    if job.world_size == 1:
        return
    yield Kind(name=_named("DDP"), accepts=lambda c: _flat(c, tp=1) and c.zero == 0)
    yield Kind(
        name=_named("FSDP (ZeRO-3)"),
        accepts=lambda c: _flat(c, tp=1) and c.zero == 3 and c.replicas == 1,
    )
    if job.nodes > 1:
        yield Kind(
            name=_named("HSDP"),
            accepts=lambda c: _flat(c, tp=1) and c.zero == 3 and c.replicas > 1,
        )
    within = max((tp for tp in degrees if tp <= job.gpus_per_node), default=1)
    if within == 1:
        return
    yield Kind(
        name=_named("Megatron TP x DDP"), accepts=lambda c: _flat(c, tp=within) and c.zero == 0
    )
    yield Kind(
        name=_named("Megatron TP x PP"),
        accepts=lambda c: c.tp == within and c.schedule == "1f1b" and c.zero == 0 and _plain(c),
    )
    yield Kind(
        name=_three_d,
        accepts=lambda c: (
            c.tp == within
            and c.schedule in ("1f1b", "interleaved_1f1b")
            and c.zero == min(1, c.dp - 1)
            and _plain(c)
        ),
    )


def runners_up(best: Config, degrees: tuple[int, ...]) -> Iterator[Kind]:
    """Kinds of plans that the best one is none of."""
    if best.pp > 1:
        yield Kind(name=_good("no pipeline"), accepts=lambda c: c.pp == 1)
        yield Kind(
            name=_good("another schedule"),
            accepts=lambda c: c.pp > 1 and c.schedule != best.schedule,
        )
    else:
        yield Kind(name=_good("a pipeline"), accepts=lambda c: c.pp > 1)
    smaller = [tp for tp in degrees if tp < best.tp]
    larger = [tp for tp in degrees if tp > best.tp]
    for tp in (*smaller[-1:], *larger[:1]):
        yield Kind(name=_good(f"tp={tp}"), accepts=_has_tp(tp))
    if best.cp > 1:
        yield Kind(name=_good("cp=1"), accepts=lambda c: c.cp == 1)


def _named(name: str) -> Callable[[Config], str]:
    return lambda _: name


def _good(kind: str) -> Callable[[Config], str]:
    return lambda _: f"{RUNNER_UP}{kind}"


def _three_d(config: Config) -> str:
    """With one data-parallel rank there is nothing that ZeRO could split."""
    schedule = "interleaved" if config.stages_per_rank > 1 else "1F1B"
    return f"3-D, {schedule}, ZeRO-{config.zero}" if config.dp > 1 else f"TP x PP, {schedule}"


def _has_tp(tp: int) -> Accepts:
    return lambda config: config.tp == tp


def _flat(config: Config, *, tp: int) -> bool:
    return config.pp == config.cp == 1 and config.tp == tp


def _plain(config: Config) -> bool:
    return config.replicas == config.cp == 1 and config.outermost == "pp"
