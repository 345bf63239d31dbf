"""What the host adds to programs of many ranks: values as measured, rates by units of two sizes.

A forward gathers each unit once; a step gathers it twice and scatters its gradients, so that what
is left of a step beside two gathers is the scatter's.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.profiler.fitting import NOTHING, Fit, joined
from autoplan.profiler.probes import HostWork, Measurements, Refused

_GATHERS_OF_A_STEP = 2
_STATED: Mapping[str, tuple[str, str]] = {
    "pieces": (
        "device.piece_read_s",
        "parameters read as pieces and as they are, two microbatches",
    ),
    "messages": ("device.message_host_s", "messages with their backward, and bare ones"),
    "gradients": (
        "device.split_gradient_s",
        "a backward whose weights are taken apart by PyTorch's pipelines, and whole",
    ),
}


def fit_host(found: Measurements) -> Fit:
    """The constants of ``cost_models.host_work`` that the measurements tell."""
    seconds = {
        (row.probe.around, row.probe.nbytes): row.value
        for row in found.measured
        if isinstance(row.probe, HostWork)
    }
    values = {_STATED[of][0]: value for (of, _), value in seconds.items() if of in _STATED}
    sources = {name: source for name, source in _STATED.values() if name in values}
    forwards = {nbytes: value for (of, nbytes), value in seconds.items() if of == "units forward"}
    steps = {nbytes: value for (of, nbytes), value in seconds.items() if of == "units"}
    scatters = {
        nbytes: value - _GATHERS_OF_A_STEP * forwards[nbytes]
        for nbytes, value in steps.items()
        if nbytes in forwards
    }
    return joined(
        Fit(values=values, sources=sources), _line("gather", forwards), _line("reduce", scatters)
    )


def _line(what: str, seconds: Mapping[int, float]) -> Fit:
    """Seconds of a unit with nearly no bytes, and the rate at which more of them take longer."""
    if not seconds:
        return NOTHING
    small, large = min(seconds), max(seconds)
    if large == small or not 0 < seconds[small] < seconds[large]:
        reason = f"units of {small} and {large} bytes take {seconds[small]:.3g} s and "
        reason += f"{seconds[large]:.3g} s"
        return Fit(
            values={}, sources={}, refused=(Refused(name=f"{what} of units", reason=reason),)
        )
    source = f"units of {small} and {large} bytes under FSDP2 and as they are"
    values = {
        f"device.{what}_host_s": seconds[small],
        f"device.{what}_copy_bytes_per_s": (large - small) / (seconds[large] - seconds[small]),
    }
    return Fit(values=values, sources=dict.fromkeys(values, source))
