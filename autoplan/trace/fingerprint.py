"""One hash for a model's structure: the same in every precision and at every batch.

Hashed are the names and shapes of inputs, parameters, buffers and constants, and the operators
with their wiring, arguments and shapes. Sizes that follow the batch count as such. Dtypes and casts
are left out, so that one model traced in bf16 and in fp32 is one model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from autoplan.trace.graph import Arg, BatchInt, OpNode, Ref, TensorMeta, TorchValue


def fingerprint(nodes: Iterable[OpNode], tied: tuple[tuple[str, ...], ...], output: Ref) -> str:
    """SHA-256, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    uncast: dict[Ref, Ref] = {}
    for node in nodes:
        if node.target.startswith("aten.to."):
            uncast[Ref(node.name)] = uncast.get(node.operands[0], node.operands[0])
            continue
        parts = (
            node.name,
            node.kind,
            node.target,
            _text(node.args, uncast),
            _text(tuple(value for _, value in node.kwargs), uncast),
            ";".join(map(_shape, node.outputs)),
        )
        digest.update("|".join(parts).encode() + b"\n")
    digest.update(f"{tied!r} {output!r}".encode())
    return digest.hexdigest()


def _shape(meta: TensorMeta) -> str:
    return ",".join(
        "batch" if dim in meta.batch_dims else str(size) for dim, size in enumerate(meta.shape)
    )


def _factor(offset: int) -> str:
    return f"(batch{offset:+})" if offset else "batch"


def _text(arg: Arg, uncast: dict[Ref, Ref]) -> str:
    if isinstance(arg, tuple):
        return f"({','.join(_text(item, uncast) for item in arg)})"
    if isinstance(arg, Ref):
        arg = uncast.get(arg, arg)
        return f"%{arg.node}.{arg.index}"
    if isinstance(arg, BatchInt):
        return "*".join((str(arg.coefficient), *map(_factor, arg.offsets)))
    if isinstance(arg, TorchValue):
        return arg.kind if arg.kind == "dtype" else arg.name
    return repr(arg)
