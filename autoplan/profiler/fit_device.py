"""Finds a device's constants from the seconds of its operators, by ``cost_models.compute``.

Products of the main dtype, streaming operators and starts are fitted together, since each product
also streams and starts; other dtypes, attention and the optimizer then have constants of their own.
A device with a data sheet keeps its peaks: what is fitted are the fractions that it achieves. A CPU
has none: there the fitted constants are rates, the best rate that was seen stands for the peak, and
the fraction is the one over the other.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoplan.profiler.fitting import (
    NOTHING,
    Fit,
    constants,
    errors_of,
    joined,
    loss_of,
    missing,
    unlike,
)
from autoplan.profiler.probes import Compute, HostCopy, Measured, Measurements, Sharing, Workspace
from cost_models.compute import kernel_s
from cost_models.gemm import gemm_bytes
from cost_models.peaks import optimizer_bytes_per_s
from cost_models.work import Gemm, Streaming
from hardware_profiles.changed import with_device_values
from hardware_profiles.spec import DeviceSpec

FEWEST_PRODUCTS, FEWEST_STREAMING, FEWEST_OTHERS, FEWEST_STEPS = 6, 5, 3, 2
_MAIN = {True: "bfloat16", False: "float32"}
_OF_TENSORS: Mapping[str, str] = {
    "adamw tensors": "device.optimizer_tensor_s",
    "adamw pieces": "device.optimizer_piece_s",
}
"""By operator, the constant that its seconds for one tensor are."""


def fit_device(found: Measurements, base: DeviceSpec, *, is_gpu: bool) -> Fit:
    """The constants that the measurements tell; all others are the base's."""
    rows = [row for row in found.measured if isinstance(row.probe, Compute)]
    attention, steps = (
        [row for row in rows if _of(row).operator == name] for name in ("attention", "adamw")
    )
    small = [row for row in rows if _of(row).operator in _OF_TENSORS]
    stated = joined(_stated(found), _of_tensors(small))
    others = [row for row in rows if row not in (*attention, *steps, *small)]
    main = _MAIN[is_gpu]
    products = [row for row in others if _is_product(row) and _of(row).dtype == main]
    streaming = [row for row in others if not _is_product(row)]
    lacking = (
        missing(f"products in {main}", products, FEWEST_PRODUCTS),
        missing("operators bound by memory", streaming, FEWEST_STREAMING),
    )
    if refused := tuple(reason for reason in lacking if reason):
        return joined(replace(NOTHING, refused=refused), stated)
    if is_gpu:
        rates = _with_data_sheet(products + streaming, base)
    else:
        rates = _without(products, streaming, steps, base)
    if rates.refused:
        return joined(rates, stated)
    device = with_device_values(base, _of_device(rates.values))
    dtypes = dict.fromkeys(_of(row).dtype for row in others if _is_product(row))
    peaks = [] if is_gpu else [_peak(others, d, device) for d in dtypes if d != main]
    tensor_s = stated.values.get("device.optimizer_tensor_s", 0.0)
    step = _step(steps, device, tensor_s)
    return joined(rates, *peaks, _attention(attention, device), step, stated)


def _with_data_sheet(rows: Sequence[Measured], base: DeviceSpec) -> Fit:
    names = ["matmul_efficiency", "memory_efficiency", "launch_s"]
    if base.sm_load_bytes_per_s is not None:
        names.append("sm_load_bytes_per_s")
    highest = {name: 1.0 for name in names if name.endswith("efficiency")}
    start = {name: getattr(base, name) for name in names}
    values = constants(_loss(rows, base), start, highest)
    return _checked(rows, with_device_values(base, values), values)


def _without(
    products: Sequence[Measured],
    streaming: Sequence[Measured],
    steps: Sequence[Measured],
    base: DeviceSpec,
) -> Fit:
    """Rates of float32 products, of memory and of operands, and the start."""
    rows = [*products, *streaming]
    best = max(_flops(row) / row.value for row in products)
    best_memory = max(_bytes(row) / row.value for row in (*rows, *steps))
    whole = replace(base, matmul_efficiency=1.0, memory_efficiency=1.0)
    start = {
        "peak_flops.float32": best,
        "memory_bytes_per_s": best_memory,
        "operand_bytes_per_s": best_memory,
        "launch_s": min(row.value for row in rows),
    }
    fitted = constants(_loss(rows, whole), start, {})
    rate, memory_rate = fitted["peak_flops.float32"], fitted["memory_bytes_per_s"]
    peak, memory_peak = max(best, rate), max(best_memory, memory_rate)
    values = {
        "peak_flops.float32": peak,
        "matmul_efficiency": rate / peak,
        "memory_bytes_per_s": memory_peak,
        "memory_efficiency": memory_rate / memory_peak,
        "operand_bytes_per_s": fitted["operand_bytes_per_s"],
        "launch_s": fitted["launch_s"],
    }
    return _checked(rows, with_device_values(base, values), values)


def _peak(rows: Sequence[Measured], dtype: str, device: DeviceSpec) -> Fit:
    """The peak of another dtype, of which products achieve the same fraction."""
    rows = _products(rows, dtype)
    if reason := missing(f"products in {dtype}", rows, FEWEST_OTHERS):
        return replace(NOTHING, refused=(reason,))
    name = f"peak_flops.{dtype}"
    best = max(_flops(row) / row.value for row in rows)
    values = constants(_loss(rows, device), {name: best / device.matmul_efficiency}, {})
    return _checked(rows, with_device_values(device, values), values)


def _checked(rows: Sequence[Measured], device: DeviceSpec, values: Mapping[str, float]) -> Fit:
    """The values, refused where the cost model with them does not meet the measurements."""
    dtypes = dict.fromkeys(_of(row).dtype for row in rows if _is_product(row))
    parts = {f"products in {dtype}": _products(rows, dtype) for dtype in dtypes}
    parts["operators bound by memory"] = [row for row in rows if not _is_product(row)]
    errors = tuple(errors_of(what, part, _predict(device)) for what, part in parts.items() if part)
    refused = tuple(reason for found in errors if (reason := unlike(found)))
    if refused:
        return replace(NOTHING, errors=errors, refused=refused)
    source = f"fitted to {len(rows)} operators, forward and backward; " + "; ".join(
        f"{found.what} {found.median:.1%} off in the median" for found in errors
    )
    return Fit(
        values={f"device.{name}": value for name, value in values.items()},
        sources={f"device.{name}": source for name in values},
        errors=errors,
    )


def _attention(rows: Sequence[Measured], device: DeviceSpec) -> Fit:
    fits = [
        _attention_pass([row for row in rows if _of(row).backward == backward], device, backward)
        for backward in (False, True)
    ]
    return joined(*fits)


def _attention_pass(rows: Sequence[Measured], device: DeviceSpec, backward: bool) -> Fit:
    direction = "backward" if backward else "forward"
    name, what = f"attention_{direction}_efficiency", f"attention {direction}"
    if reason := missing(what, rows, FEWEST_OTHERS):
        return replace(NOTHING, refused=(reason,))
    values = constants(_loss(rows, device), {name: device.matmul_efficiency}, {name: 1.0})
    errors = errors_of(what, rows, _predict(with_device_values(device, values)))
    if reason := unlike(errors):
        return replace(NOTHING, errors=(errors,), refused=(reason,))
    source = f"fitted to {len(rows)} shapes, {errors.median:.1%} off in the median"
    return Fit(
        values={f"device.{name}": values[name]},
        sources={f"device.{name}": source},
        errors=(errors,),
    )


def _of_tensors(rows: Sequence[Measured]) -> Fit:
    """What each tensor takes of an optimizer's step, whole or a piece, whatever its size."""
    values, sources = {}, {}
    for row in rows:
        name, (number, elements) = _OF_TENSORS[_of(row).operator], _of(row).shape
        values[name] = row.value / number
        sources[name] = f"AdamW on {number} parameters of {elements} elements"
    return Fit(values=values, sources=sources)


def _step(rows: Sequence[Measured], device: DeviceSpec, tensor_s: float) -> Fit:
    """What an optimizer's step reaches of the memory's peak, as the planner prices it.

    Args:
        tensor_s: of each measurement, what its tensor takes whatever its size.
    """
    what = "optimizer's step"
    rows = [replace(row, value=row.value - tensor_s) for row in rows if row.value > tensor_s]
    if reason := missing(what, rows, FEWEST_STEPS):
        return replace(NOTHING, refused=(reason,))
    rates = [_bytes(row) / row.value for row in rows]
    efficiency = min(1.0, statistics.geometric_mean(rates) / device.memory_bytes_per_s)
    rate = optimizer_bytes_per_s(replace(device, optimizer_efficiency=efficiency))
    errors = errors_of(what, rows, lambda row: _bytes(row) / rate)
    if reason := unlike(errors):
        return replace(NOTHING, errors=(errors,), refused=(reason,))
    name = "device.optimizer_efficiency"
    source = f"AdamW on {len(rows)} sizes, {errors.median:.1%} off in the median"
    return Fit(values={name: efficiency}, sources={name: source}, errors=(errors,))


def _stated(found: Measurements) -> Fit:
    """What is a value by itself."""
    values: dict[str, float] = {}
    sources: dict[str, str] = {}
    copies = [row for row in found.measured if isinstance(row.probe, HostCopy)]
    if copies:
        rates = [row.probe.nbytes / row.value for row in copies if isinstance(row.probe, HostCopy)]
        values["device.host_link_bytes_per_s"] = min(rates)
        sources["device.host_link_bytes_per_s"] = "large copies, the slower way"
    for row in found.measured:
        if isinstance(row.probe, Workspace):
            values["device.workspace_bytes"] = row.value
            sources["device.workspace_bytes"] = "what a process holds before it has tensors"
        elif isinstance(row.probe, Sharing):
            name = f"busy_share.{row.probe.devices}"
            values[name] = row.value
            sources[name] = (
                f"{row.probe.cores:g} of a core for each, and products beside those of the others"
            )
    return Fit(values=values, sources=sources)


def _loss(rows: Sequence[Measured], device: DeviceSpec):
    return lambda values: loss_of(rows, _predict(with_device_values(device, values)))


def _predict(device: DeviceSpec):
    return lambda row: sum(kernel_s(work, device) for work in _of(row).works)


def _of(row: Measured) -> Compute:
    assert isinstance(row.probe, Compute)
    return row.probe


def _is_product(row: Measured) -> bool:
    return _of(row).operator == "product"


def _products(rows: Sequence[Measured], dtype: str) -> list[Measured]:
    return [row for row in rows if _is_product(row) and _of(row).dtype == dtype]


def _flops(row: Measured) -> float:
    return sum(work.flops for work in _of(row).works if isinstance(work, Gemm))


def _bytes(row: Measured) -> float:
    streamed = sum(work.bytes for work in _of(row).works if isinstance(work, Streaming))
    return streamed + sum(gemm_bytes(work) for work in _of(row).works if isinstance(work, Gemm))


def _of_device(values: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix("device."): value for name, value in values.items()}
