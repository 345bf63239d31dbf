"""The standard recipes, as pins on configurations, and the kinds of plans that a winner beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoplan.job import Job
from autoplan.search.pipeline.configs import Config
from autoplan.search.regions.menus import Recompute

Accepts = Callable[[Config], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Configurations that share something, and how their blocks recompute."""

    name: str
    accepts: Accepts
    recompute: tuple[Recompute, ...] = ("none", "full")


def recipes(job: Job, degrees: tuple[int, ...]) -> Iterator[Kind]:
    """DDP, FSDP, hybrid sharding, Megatron's tensor and pipeline parallelism, and all with ZeRO 1.

    ``degrees`` are the admissible ones of ``tp``. Each takes its best microbatch, and all or no
    blocks recomputed. One GPU needs no recipe.
    """
    if job.world_size == 1:
        return
    yield Kind(name="DDP", accepts=lambda c: _flat(c, tp=1) and c.zero == 0)
    yield Kind(
        name="FSDP (ZeRO-3)", accepts=lambda c: _flat(c, tp=1) and c.zero == 3 and c.replicas == 1
    )
    if job.nodes > 1:
        yield Kind(name="HSDP", accepts=lambda c: _flat(c, tp=1) and c.zero == 3 and c.replicas > 1)
    within = max((tp for tp in degrees if tp <= job.gpus_per_node), default=1)
    if within == 1:
        return
    yield Kind(name="Megatron TP x DDP", accepts=lambda c: _flat(c, tp=within) and c.zero == 0)
    yield Kind(
        name="Megatron TP x PP",
        accepts=lambda c: c.tp == within and c.schedule == "1f1b" and c.zero == 0 and _plain(c),
    )
    yield Kind(
        name="3-D, interleaved, ZeRO-1",
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
        yield Kind(name="no pipeline", accepts=lambda c: c.pp == 1)
        yield Kind(
            name="another schedule",
            accepts=lambda c: c.pp > 1 and c.schedule != best.schedule,
        )
    else:
        yield Kind(name="a pipeline", accepts=lambda c: c.pp > 1)
    smaller = [tp for tp in degrees if tp < best.tp]
    larger = [tp for tp in degrees if tp > best.tp]
    for tp in (*smaller[-1:], *larger[:1]):
        yield Kind(name=f"tp={tp}", accepts=_has_tp(tp))
    if best.cp > 1:
        yield Kind(name="cp=1", accepts=lambda c: c.cp == 1)


def _has_tp(tp: int) -> Accepts:
    return lambda config: config.tp == tp


def _flat(config: Config, *, tp: int) -> bool:
    return config.pp == config.cp == 1 and config.tp == tp


def _plain(config: Config) -> bool:
    return config.replicas == config.cp == 1 and config.outermost == "pp"
