"""Finds a link's constants from the seconds of collectives, by ``cost_models.collectives``.

A tier's constants are fitted to the groups that cross it and no farther one: the inner link's
first, then the network's. Ranks that share cores are slowed down as ``hardware_profiles.sharing``
says; what else the size of a group changes there is its ``group_share``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autoplan.profiler.fitting import (
    NOTHING,
    Fit,
    Predict,
    constants,
    errors_of,
    joined,
    loss_of,
    missing,
    unlike,
)
from autoplan.profiler.probes import Exchange, Measured, Measurements, Overlap
from cost_models.collectives import collective_s
from hardware_profiles.changed import with_constant
from hardware_profiles.sharing import in_use
from hardware_profiles.spec import ClusterSpec, LinkSpec

Tier = Literal["intra_node", "inter_node"]
FEWEST = 8
_MESSAGES = ("all_to_all", "send_recv")
_HIGHEST = {"ll": 4 / 8, "ll128": 120 / 128}  # payload in what these protocols send


def fit_links(found: Measurements, cluster: ClusterSpec, *, is_gpu: bool) -> Fit:
    """The constants of the tiers that groups crossed; all others are the base's.

    Args:
        cluster: the base with what is measured of its devices, ``busy_share`` among it.
    """
    rows = [row for row in found.measured if isinstance(row.probe, Exchange)]
    overlap = _overlap(found)
    if not rows:
        return overlap
    near = [row for row in rows if _of(row).ranks <= _of(row).per_node]
    far = [row for row in rows if row not in near]
    inner = _tier("intra_node", near, cluster, is_gpu=is_gpu)
    if not far:
        return joined(inner, overlap)
    link = cluster.intra_node
    for name, value in inner.values.items():
        link = with_constant(link, name.removeprefix("intra_node."), value)
    outer = _tier("inter_node", far, replace(cluster, intra_node=link), is_gpu=is_gpu)
    return joined(inner, outer, overlap)


def _tier(tier: Tier, rows: Sequence[Measured], cluster: ClusterSpec, *, is_gpu: bool) -> Fit:
    what = "messages within a node" if tier == "intra_node" else "messages between nodes"
    if reason := missing(what, rows, FEWEST):
        return replace(NOTHING, refused=(reason,))
    start = _start(getattr(cluster, tier), rows, is_gpu=is_gpu)
    highest = {name: _highest(name) for name in start if _is_fraction(name, is_gpu=is_gpu)}
    predictor = _Predictor(tier, cluster, frozenset(_of(row).in_use for row in rows))
    fitted = constants(
        lambda values: loss_of(rows, predictor.with_values(values)),
        start,
        highest,
    )
    values = fitted if is_gpu else _as_fractions(fitted)
    predicted = predictor.with_values(values)
    errors = [errors_of(what, rows, predicted)]
    for kind in dict.fromkeys(_of(row).kind for row in rows):
        members = [row for row in rows if _of(row).kind == kind]
        errors.append(errors_of(kind, members, predicted))
    if reason := unlike(errors[0]):
        return replace(NOTHING, errors=tuple(errors), refused=(reason,))
    apart = tuple(reason for each in errors[1:] if (reason := unlike(each)))
    for refused in apart:
        values.pop(f"kind_share.{refused.name}", None)
    source = f"fitted to {len(rows)} collectives, {errors[0].median:.1%} off in the median"
    return Fit(
        values={f"{tier}.{name}": value for name, value in values.items()},
        sources=dict.fromkeys((f"{tier}.{name}" for name in values), source),
        errors=tuple(errors),
        refused=apart,
    )


def _start(link: LinkSpec, rows: Sequence[Measured], *, is_gpu: bool) -> dict[str, float]:
    """Where the search begins: the base's constants, or on a CPU what the messages suggest."""
    if not is_gpu:
        smallest = min(row.value for row in rows)
        sizes = sorted({_of(row).ranks for row in rows})
        kinds = dict.fromkeys(_of(row).kind for row in rows)
        return {
            "bytes_per_s": max(_of(row).nbytes / row.value for row in rows) / 2,
            "latency_s": smallest / 2,
            "launch_s": smallest,
            "p2p_launch_s": smallest,
            "p2p_efficiency": 1.0,
            **{f"group_share.{ranks}": 1.0 for ranks in sizes},
            **{f"kind_share.{kind}": 1.0 for kind in kinds},
        }
    start = {name: getattr(link, name) for name in ("launch_s", "latency_s", "efficiency")}
    start["p2p_launch_s"] = link.launch_s if link.p2p_launch_s is None else link.p2p_launch_s
    start["p2p_efficiency"] = link.p2p_efficiency or link.efficiency
    if link.in_network_efficiency is not None:
        start["in_network_efficiency"] = link.in_network_efficiency
    for name, protocol in link.protocols.items():
        for part in ("launch_s", "latency_s", "efficiency"):
            start[f"protocols.{name}.{part}"] = getattr(protocol, part)
    return start


def _highest(name: str) -> float:
    protocol = name.split(".")[1] if name.startswith("protocols") else ""
    return _HIGHEST.get(protocol, 1.0)


def _is_fraction(name: str, *, is_gpu: bool) -> bool:
    return "share" in name or ("efficiency" in name and is_gpu)


def _as_fractions(fitted: Mapping[str, float]) -> dict[str, float]:
    """The same rates with the best of them as the link's peak, and the best share of each as 1.

    Until here ``bytes_per_s`` was the rate of rings, with an efficiency of 1, and
    ``p2p_efficiency`` that of messages over it, which may be more than 1.
    """
    groups = _scaled("group_share", fitted)
    chunked, messages = (
        _scaled("kind_share", {n: v for n, v in fitted.items() if _is_message(n) == are_messages})
        for are_messages in (False, True)
    )
    rings = fitted["bytes_per_s"] * groups.largest * chunked.largest
    pairs = fitted["bytes_per_s"] * fitted["p2p_efficiency"] * groups.largest * messages.largest
    peak = max(rings, pairs)
    return {
        **{name: value for name, value in fitted.items() if name.endswith("_s")},
        **groups.values,
        **chunked.values,
        **messages.values,
        "bytes_per_s": peak,
        "efficiency": rings / peak,
        "p2p_efficiency": pairs / peak,
    }


def _is_message(name: str) -> bool:
    return name.rpartition(".")[2] in _MESSAGES


@dataclass(frozen=True, slots=True)
class _Shares:
    """Shares over the largest of them."""

    values: Mapping[str, float]
    largest: float


def _scaled(prefix: str, fitted: Mapping[str, float]) -> _Shares:
    shares = {name: value for name, value in fitted.items() if name.startswith(prefix)}
    largest = max(shares.values(), default=1.0)
    return _Shares({name: value / largest for name, value in shares.items()}, largest)


@dataclass(frozen=True, slots=True)
class _Predictor:
    """Predicts rows with values of one tier's link in the cluster, for these ``in_use``."""

    tier: Tier
    cluster: ClusterSpec
    numbers: frozenset[int]

    def with_values(self, values: Mapping[str, float]) -> Predict:
        link = getattr(self.cluster, self.tier)
        if "bytes_per_s" in values and "efficiency" not in values:
            link = replace(link, efficiency=1.0)
        for name, value in values.items():
            link = with_constant(link, name, value)
        changed = replace(self.cluster, **{self.tier: link})
        busy = {number: in_use(changed, number) for number in self.numbers}

        def predicted(row: Measured) -> float:
            probe = _of(row)
            on = busy[probe.in_use]
            return collective_s(probe.kind, probe.nbytes, probe.ranks, probe.per_node, on)

        return predicted


def _overlap(found: Measurements) -> Fit:
    rows = [row for row in found.measured if isinstance(row.probe, Overlap)]
    if not rows:
        return NOTHING
    return Fit(
        values={"overlap_efficiency": rows[0].value},
        sources={"overlap_efficiency": f"an {rows[0].probe.name}, in the median of rounds"},
    )


def _of(row: Measured) -> Exchange:
    assert isinstance(row.probe, Exchange)
    return row.probe
