"""Bring a module with an operator of your own: look it over, say how it splits, plan, prove it.

    python examples/04_custom_operator.py

The operator stands for a kernel of yours, bound by ``torch.library``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoplan

WIDTH, INNER, LAYERS = 64, 256, 2


@torch.library.custom_op("example::gated_product", mutates_args=())
def gated_product(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """``silu(x @ gate) * (x @ up)`` in one kernel."""
    return F.silu(x @ gate) * (x @ up)


@gated_product.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """What it returns, without computing it: models are planned without weights."""
    return x.new_empty(*x.shape[:-1], gate.shape[1])


def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, gate, up = ctx.saved_tensors
    gated, upped = x @ gate, x @ up
    share = torch.sigmoid(gated)
    to_gated = grad * upped * share * (1 + gated * (1 - share))
    to_upped = grad * gated * share
    rows = x.flatten(0, -2).T
    return (
        to_gated @ gate.T + to_upped @ up.T,
        rows @ to_gated.flatten(0, -2),
        rows @ to_upped.flatten(0, -2),
    )


gated_product.register_autograd(
    backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Parameter(torch.randn(WIDTH, INNER) / WIDTH**0.5)
        self.up = nn.Parameter(torch.randn(WIDTH, INNER) / WIDTH**0.5)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(gated_product(self.norm(x), self.gate, self.up))


class Regressor(nn.Module):
    """Returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.blocks(x)), y)


def main() -> None:
    torch.manual_seed(0)
    model = Regressor()
    batch = {"x": torch.randn(8, 16, WIDTH), "y": torch.randn(8, 16, 1)}

    # The doctor names the operator that has no rule, its line, and what that costs.
    autoplan.print_report(autoplan.doctor(model, batch))

    # The rule: one letter for every dim; ranks may share each but h, over which the operator sums
    # before it is through. A rule is tried on the operator first: without whole="h" this one is
    # refused, with the split that gives another result.
    autoplan.register_rule("example::gated_product", "b s h, h k, h k -> b s k", whole="h")
    autoplan.print_report(autoplan.doctor(model, batch))

    # Now tensor parallelism splits the operator: every rank computes half of its columns.
    plan = autoplan.plan(
        model, batch, cluster="cpu-gloo", gpus_per_node=4, global_batch=8, precision="fp32",
        pins={"tp": 2, "dp": 2},
    )  # fmt: skip
    autoplan.print_report(plan)  # see "Placement of parameters on tp"

    # Four processes here give what one gives: loss, every gradient, the weights after a step.
    verification = autoplan.verify(plan, model, batch)
    autoplan.print_report(verification)
    assert verification.ok


if __name__ == "__main__":
    main()
