"""How fast positions turn queries and keys: the frequencies of rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretched:
    """Llama 3.1's reading of positions beyond those of the first pretraining."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeParameters:
    """Base of the frequencies, and how they are stretched."""

    theta: float
    stretched: Stretched | None = None

    @staticmethod
    def read(fields: Mapping[str, Any]) -> RopeParameters | None:
        """``rope_parameters`` of a transformers config; None where it is of another type."""
        others = dict(fields)
        kind, theta = others.pop("rope_type", None), others.pop("rope_theta", None)
        if theta is None:
            return None
        if kind == "default" and not others:
            return RopeParameters(theta=theta)
        if kind == "llama3" and set(others) == set(Stretched.__dataclass_fields__):
            return RopeParameters(theta=theta, stretched=Stretched(**others))
        return None


def frequencies(
    parameters: RopeParameters, head_size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Radians a position of each pair, ``[head_size / 2]``, in fp32.

    ``theta ** (-2 i / head_size)`` (Su et al. 2021, eq. 15). Stretched, wavelengths above the
    original length over ``low_freq_factor`` become ``factor`` times longer, those below it over
    ``high_freq_factor`` stay, and those between are interpolated (Llama 3.1's reference code).
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float, device=device) / head_size
    turns = 1.0 / (parameters.theta**exponents)
    stretched = parameters.stretched
    if stretched is None:
        return turns
    low, high = stretched.low_freq_factor, stretched.high_freq_factor
    length = stretched.original_max_position_embeddings
    wavelengths = 2 * math.pi / turns
    share = ((length / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * turns / stretched.factor + share * turns
