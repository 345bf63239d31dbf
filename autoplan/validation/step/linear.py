"""Products with weights: which kernels each pass of one has.

8-bit products cast their activations first. Frozen weights in 4 bits are written out in 16 before
each product that reads them, forward and backward (bitsandbytes' ``MatMul4Bit``). Weights that do
not learn have no gradient, but their inputs do.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.ranks.held_states import NF4_BYTES
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.attention_core import activation_dtype
from autoplan.validation.step.passes import ACTIVATION_BYTES, Part, Pass, streaming
from cost_models.work import Gemm, Work


@dataclass(frozen=True, slots=True)
class Linear:
    """One product with a weight: (tokens, inputs) x (inputs, outputs), sizes of one rank.

    Attributes:
        copies: products of these sizes with weights of their own (experts).
        adapter: it is part of an adapter: it learns, in 16 bits, without a bias.
    """

    setup: Setup
    tokens: int
    inputs: int
    outputs: int
    copies: int = 1
    adapter: bool = False

    def part(self) -> Part:
        """All passes of the product."""
        return Part(
            forward=Pass(kernels=self.forward()),
            inputs=Pass(kernels=self.inputs_backward()),
            weights=Pass(kernels=self.weights_backward()),
        )

    def forward(self) -> tuple[Work, ...]:
        product = self._product(self.tokens, self.outputs, self.inputs)
        casts = self._casts(self.tokens * self.inputs, made_by_kernels=True)
        return (*casts, *self._written_out(), product)

    def inputs_backward(self) -> tuple[Work, ...]:
        product = self._product(self.tokens, self.inputs, self.outputs)
        casts = self._casts(self.tokens * self.outputs, made_by_kernels=False)
        return (*casts, *self._written_out(), product)

    def weights_backward(self) -> tuple[Work, ...]:
        """Gradient of the weight, of the bias, and the sum with what earlier microbatches left."""
        setup, framework = self.setup, self.setup.framework
        if self._frozen:
            return ()
        kernels: list[Work] = [
            self._product(*self._gradient_sizes, self.tokens, into_gradient=True)
        ]
        if setup.model.biases and not self.adapter:
            kernels.append(streaming(self.copies * self.tokens * self.outputs, ACTIVATION_BYTES))
        if not framework.fuses_weight_gradients and setup.microbatches > 1 and setup.zero < 2:
            kept = framework.gradient_bytes
            kernels.append(streaming(self._weights, ACTIVATION_BYTES + 2 * kept))
        return tuple(kernels)

    @property
    def _weights(self) -> int:
        return self.copies * self.inputs * self.outputs

    @property
    def _gradient_sizes(self) -> tuple[int, int]:
        """Rows and columns of the gradient; its operands lie in rows of inputs and of outputs.

        Columns are what a product's alignment is judged by: the less even of the two.
        """
        if self.inputs & -self.inputs > self.outputs & -self.outputs:
            return self.inputs, self.outputs
        return self.outputs, self.inputs

    @property
    def _frozen(self) -> bool:
        return self.setup.tuning != "all" and not self.adapter

    @property
    def _dtype(self) -> str:
        return activation_dtype(self.setup) if self.adapter else self.setup.compute_dtype

    def _product(self, m: int, n: int, k: int, *, into_gradient: bool = False) -> Gemm:
        fused = into_gradient and self.setup.framework.fuses_weight_gradients
        return Gemm(
            m=m,
            n=n,
            k=k,
            batch=self.copies,
            dtype=self._dtype,
            output_bytes=self.setup.framework.gradient_bytes if fused else ACTIVATION_BYTES,
            accumulates=fused,
        )

    def _casts(self, elements: int, *, made_by_kernels: bool) -> tuple[Work, ...]:
        """Into 8 bits, and transposed for the product of the weights' gradients.

        Hand-written norms and activations write 8 bits in place of 16: casts of what they make cost
        the transposed copy alone.
        """
        if not self._dtype.startswith("float8"):
            return ()
        within = made_by_kernels and self.setup.framework.pointwise == "fused"
        moved = 0 if within else ACTIVATION_BYTES + 1
        if not self._frozen:
            moved += 2 if within else 1
        return (streaming(self.copies * elements, moved),) if moved else ()

    def _written_out(self) -> tuple[Work, ...]:
        if not (self._frozen and self.setup.quantised):
            return ()
        return (streaming(self._weights, NF4_BYTES + ACTIVATION_BYTES),)
