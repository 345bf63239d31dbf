"""A profile with its rates and starts corrected by factors, each value saying so.

A rate is a peak times a fraction of it. Where a correction makes a fraction more than 1, the peak
grows; a data sheet's does not, there the fraction ends at 1. Ranks that share cores keep their
share (``busy_share``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoplan.calibration.factors import Factors
from hardware_profiles.load import with_digest
from hardware_profiles.schema import ProfileFacts

Tree = dict[str, Any]

_PRODUCTS = (
    "matmul_efficiency", "float8_matmul_efficiency", "attention_forward_efficiency",
    "attention_backward_efficiency",
)  # fmt: skip
_HOST_STARTS = (
    "launch_s", "piece_read_s", "split_gradient_s", "message_host_s", "gather_host_s",
    "reduce_host_s",
)  # fmt: skip
_PLAIN_RATES = (
    "sm_load_bytes_per_s", "operand_bytes_per_s", "gather_copy_bytes_per_s",
    "reduce_copy_bytes_per_s",
)  # fmt: skip
_MESSAGES = ("efficiency", "p2p_efficiency", "in_network_efficiency")
_STARTS = ("launch_s", "latency_s", "p2p_launch_s")
_LONGEST_SOURCE = 1000


def corrected(facts: ProfileFacts, factors: Factors, words: str) -> ProfileFacts:
    """The profile under which the plan would have been predicted as it was measured.

    Args:
        words: how that was found; the source of each changed value begins with them.
    """
    tree = facts.model_dump(exclude_none=True, exclude={"machine"})
    device, compute = tree["device"], factors.of("compute")
    if "optimizer" in factors.factors:
        device.setdefault("optimizer_efficiency", dict(device["memory_efficiency"]))
    _slow_rates(device, ["peak_flops"], dict.fromkeys(_PRODUCTS, compute), words)
    memory = {"memory_efficiency": compute, "optimizer_efficiency": factors.of("optimizer")}
    _slow_rates(device, ["memory_bytes_per_s"], memory, words)
    _scale_all(device, _HOST_STARTS, compute, words)
    _scale_all(device, ("optimizer_tensor_s", "optimizer_piece_s"), factors.of("optimizer"), words)
    _scale_all(device, _PLAIN_RATES, 1 / compute, words)
    for link in (tree["intra_node"], tree["inter_node"]):
        _slow_link(link, factors.of("messages"), words)
    made = ProfileFacts.model_validate(tree)
    return with_digest(made.model_copy(update={"machine": facts.machine}))


def _slow_link(link: Tree, factor: float, words: str) -> None:
    _slow_rates(link, ["bytes_per_s"], dict.fromkeys(_MESSAGES, factor), words)
    _scale_all(link, _STARTS, factor, words)
    for protocol in link.get("protocols", {}).values():
        _slow_rates(protocol, [], {"efficiency": factor}, words)
        _scale_all(protocol, _STARTS, factor, words)


def _slow_rates(part: Tree, peaks: Sequence[str], by: Mapping[str, float], words: str) -> None:
    """Divides fractions of the peaks by factors."""
    fractions = {name: part[name]["value"] / factor for name, factor in by.items() if name in part}
    known = [fact for peak in peaks if peak in part for fact in _facts(part[peak])]
    grows = all(fact["provenance"] != "datasheet" for fact in known)
    scale = max(1.0, *fractions.values()) if known and grows and fractions else 1.0
    for name, fraction in fractions.items():
        _scale(part[name], min(1.0, fraction / scale) / part[name]["value"], words)
    for fact in known:
        _scale(fact, scale, words)


def _scale_all(part: Tree, names: Sequence[str], factor: float, words: str) -> None:
    for name in names:
        if name in part:
            _scale(part[name], factor, words)


def _facts(entry: Tree) -> Iterator[Tree]:
    """A fact, or those of a table."""
    if "provenance" in entry:
        yield entry
    else:
        yield from entry.values()


def _scale(fact: Tree, by: float, words: str) -> None:
    if by == 1.0 or not fact["value"]:
        return
    source = f"{words}: {by:.4g} times {fact['value']:.4g} ({fact['provenance']}, {fact['source']})"
    fact["value"] = float(f"{fact['value'] * by:.6g}")
    fact["provenance"], fact["source"] = "fitted", source[:_LONGEST_SOURCE]
