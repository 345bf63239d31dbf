"""How much of data-parallel communication shows beside the compute that it runs under.

Communication can hide under at most as much compute as there is, and hiding is not free: kernels
that run at the same time slow each other down. ``overlap_efficiency`` is the fraction of the hidden
time that is really saved.
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
