"""Plan a model of one's own for a cluster that this machine does not have.

    python examples/01_plan_only.py

The model is built on ``meta``, so that not a single weight is allocated.
"""

import torch
from torch import nn

import autoplan


class Regressor(nn.Module):
    """A wide MLP that returns its loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return nn.functional.mse_loss(self.head(x), y)


def main() -> None:
    with torch.device("meta"):
        model = Regressor(width=16384, depth=16)
        example_inputs = {"x": torch.empty(2, 16384), "y": torch.empty(2, 1)}
    plan = autoplan.plan(model, example_inputs, cluster="dgx-a100-80g", global_batch=4096)
    autoplan.print_report(plan)


if __name__ == "__main__":
    main()
