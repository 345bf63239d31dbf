"""Kernels of a recurrent layer, as cuDNN runs it.

The products of all steps with the input are one; those with the state wait for each other. Behind
each of them one kernel streams the gates and the state. The backward has the same products for both
gradients, those of the weights over all steps at once (Appleyard et al. 2016, sections 3 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.peaks import element_bytes
from cost_models.work import Gemm, Streaming, Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """One layer in one direction: ``rows`` of gates from ``inputs`` and from a state ``width``."""

    samples: int
    steps: int
    rows: int
    inputs: int
    width: int
    dtype: str

    def forward(self) -> tuple[Work, ...]:
        """All kernels of the forward."""
        return (
            self._gemm(self.samples * self.steps, self.rows, self.inputs),
            *(self._gemm(self.samples, self.rows, self.width),) * self.steps,
            self._gates(1),
        )

    def backward(self, *, of_input: bool) -> tuple[Work, ...]:
        """Gradients of states, and of the input if asked."""
        inner = self._gemm(self.samples * self.steps, self.inputs, self.rows)
        return (
            *(self._gemm(self.samples, self.width, self.rows),) * self.steps,
            *(inner,) * of_input,
            self._gates(2),
        )

    def of_weights(self) -> tuple[Work, ...]:
        """Gradients of both matrices."""
        steps = self.samples * self.steps
        return self._gemm(self.rows, self.inputs, steps), self._gemm(self.rows, self.width, steps)

    def _gemm(self, m: int, n: int, k: int) -> Gemm:
        return Gemm(m=m, n=n, k=k, dtype=self.dtype, output_bytes=element_bytes(self.dtype))

    def _gates(self, passes: int) -> Streaming:
        """Both products are read, gates and two states written; the backward adds as much."""
        elements = self.samples * self.steps * (3 * self.rows + 3 * self.width)
        return Streaming(bytes=passes * elements * element_bytes(self.dtype), kernels=self.steps)
