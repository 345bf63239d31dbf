"""Bytes that a rank has for what its items hold: the limit, less what passes at least."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.range_ends import largest
from autoplan.search.pipeline.whole import WholeCosts
from cost_models.memory import STORED_BYTES


def room_bytes(costs: WholeCosts, model: Model) -> npt.NDArray[np.float64]:
    """For each range of items, shape (items + 1, items + 1), the bytes that there are for them.

    That is the limit less an operator at work, a gradient sent and weights gathered, each at its
    least.
    """
    memory = costs.memory
    least = {key: menu.least_operator_bytes() for key, menu in model.menus.items()}
    room = memory.limit_bytes - memory.fixed_bytes - largest([least[key] for key in model.keys])
    if not memory.is_alone:
        sent = [STORED_BYTES * model.elements[key].least_trained for key in model.keys]
        room = room - largest(sent)
    gathered = [
        is_block * memory.trained.gathered_in_flight * model.elements[key].least_trained
        for key, is_block in zip(model.keys, costs.is_block, strict=True)
    ]
    return room - largest(gathered)
