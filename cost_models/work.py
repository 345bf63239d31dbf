"""What one device is asked to do: the kernels that costs are given for.

A kernel says its shape, not its time. ``Gemm`` is a matrix product, ``FlashAttention`` the fused
kernel that never writes the scores, ``Contraction`` a product whose shape is not known,
``Streaming`` everything that is bound by device memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """``batch`` products (m, k) x (k, n) -> (m, n), each summed over k.

    Attributes:
        dtype: what is multiplied (``bfloat16``, ``float8_e4m3fn``).
        output_bytes: of one element written.
        accumulates: adds to an output that is there (reads it first).
    """

    m: int
    n: int
    k: int
    dtype: str
    batch: int = 1
    output_bytes: int = 2
    accumulates: bool = False

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttention:
    """Fused softmax(q k^T) v over ``batch`` sequences.

    Attributes:
        heads, kv_heads: query heads, and heads of keys and values.
        queries, keys: positions; they differ where the sequence is split.
        head_dim, value_dim: of queries and keys, and of values (they differ in MLA).
        causal: half of the scores are skipped.
        backward: the gradient kernel (five products for the forward's two).
        generation: of the kernel: FlashAttention 1, 2 or 3; None: the newest that the device runs.
        rate_share: of that kernel's rate, what is reached.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    dtype: str
    causal: bool
    backward: bool = False
    generation: int | None = None
    rate_share: float = 1.0

    @property
    def flops(self) -> float:
        """Operations that are really done; the causal half is counted once."""
        scores = self.batch * self.heads * self.queries * self.keys / (2 if self.causal else 1)
        products = 3 * self.head_dim + 2 * self.value_dim if self.backward else (
            self.head_dim + self.value_dim
        )  # fmt: skip
        return 2.0 * scores * products


@dataclass(frozen=True, kw_only=True, slots=True)
class Contraction:
    """Products of which only the operations and the bytes read and written are known."""

    flops: float
    bytes: float
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Streaming:
    """Kernels that read and write device memory: norms, activations, softmax, casts, optimizers.

    Attributes:
        bytes: read and written by all of them.
        kernels: how many kernels that is.
    """

    bytes: float
    kernels: int = 1


Work: TypeAlias = Gemm | FlashAttention | Contraction | Streaming
