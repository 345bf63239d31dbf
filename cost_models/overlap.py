"""How much of the communication shows beside the compute that it runs under, by mechanism.

Communication can hide under at most as much compute as there is, and hiding is not free: kernels
that run at the same time slow each other down. ``overlap_efficiency`` is the fraction of the hidden
time that is really saved. What is hidden and under what is a matter of the mechanism:

- ``prefetched_s``: FSDP. Each unit's gather (scatter) runs beside the neighbouring unit's compute;
  the first gather (the last scatter) has no neighbour.
- ``bucketed_s``: DDP, ZeRO 1. Gradients leave in buckets beside one backward; the last bucket is
  full only when the backward ends. Weights come back in buckets beside one forward.
- ``tensor_parallel_s``: messages between products block; asynchronous ones run beside products.

Messages between pipeline stages are simulated with the schedule (``pipeline``).

All times are seconds; each function gives what is added to the compute. With the compute it grows
in every time, is at least the longer one of compute and communication, and at most their sum.
"""

from __future__ import annotations


def exposed_s(comm_s: float, compute_s: float, overlap_efficiency: float) -> float:
    """Seconds that communication adds to the compute it may run beside.

    Args:
        comm_s: communication, all of which may overlap.
        compute_s: compute that is there to hide it.
        overlap_efficiency: 0 hides nothing, 1 hides all that fits.

    Raises:
        ValueError: a negative time, or an efficiency outside 0 to 1.
    """
    if comm_s < 0 or compute_s < 0 or not 0 <= overlap_efficiency <= 1:
        raise ValueError(
            f"cannot overlap {comm_s} s with {compute_s} s at efficiency {overlap_efficiency}"
        )
    return comm_s - overlap_efficiency * min(comm_s, compute_s)


def prefetched_s(
    alone_s: float, message_s: float, compute_s: float, units: int, overlap_efficiency: float
) -> float:
    """Seconds that messages of a pass unit by unit add to its compute (Zhao et al. 2023, 3.3).

    Args:
        alone_s: the message that has no neighbour: the first gather, the last scatter.
        message_s: of one unit, beside its neighbour.
        compute_s: of one unit.
        units: how often a message runs beside a unit.

    Raises:
        ValueError: a negative time or number, or an efficiency outside 0 to 1.
    """
    if alone_s < 0 or units < 0:
        raise ValueError(f"no such messages: {alone_s} s alone and {units} units")
    return alone_s + units * exposed_s(message_s, compute_s, overlap_efficiency)


def bucketed_s(comm_s: float, compute_s: float, buckets: int, overlap_efficiency: float) -> float:
    """Seconds that messages in equal buckets add to the pass beside them (Li et al. 2020, 3.2).

    Where the messages take longer than the pass, the wait for the first bucket to fill is left out:
    at most ``compute_s / buckets``.

    Args:
        comm_s: all buckets; one of them shows in full.
        compute_s: of the pass, the last backward or the first forward of a step.

    Raises:
        ValueError: no buckets, a negative time, or an efficiency outside 0 to 1.
    """
    if buckets < 1:
        raise ValueError(f"{buckets} buckets: use one or more")
    bucket_s = comm_s / buckets
    return bucket_s + exposed_s(comm_s - bucket_s, compute_s, overlap_efficiency)


def tensor_parallel_s(
    blocking_s: float, asynchronous_s: float, compute_s: float, overlap_efficiency: float
) -> float:
    """Seconds that the messages around a pass's products add to them (Shoeybi et al. 2019).

    Args:
        blocking_s: messages that the next product needs whole.
        asynchronous_s: messages beside products: of gradients of the inputs beside those of the
            weights, or cut with the product they belong to (Wang et al. 2023).
        compute_s: the products that they may run beside.

    Raises:
        ValueError: a negative time, or an efficiency outside 0 to 1.
    """
    if blocking_s < 0:
        raise ValueError(f"no such messages: {blocking_s} s")
    return blocking_s + exposed_s(asynchronous_s, compute_s, overlap_efficiency)
