"""Models that transformers does not have, written out in PyTorch."""

from autoplan.zoo.written.build import written

__all__ = ["written"]
