"""Seconds of conversions between placements on ``tp``, for one microbatch on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from autoplan.sharding.placement import Placement
from autoplan.sharding.redistribute import (
    Message,
    Motion,
    conversion,
    is_possible,
    messages,
    motion_messages,
)
from autoplan.sharding.strategies import Port
from cost_models.collectives import CollectiveKind, collective_s
from cost_models.host_work import message_host_s
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionCost:
    """One conversion: seconds and messages (kind, bytes) of one microbatch; None is impossible."""

    forward_s: float
    backward_s: float
    forward: tuple[Message, ...] = ()
    backward: tuple[Message, ...] = ()


FREE = ConversionCost(forward_s=0.0, backward_s=0.0)
IMPOSSIBLE = ConversionCost(forward_s=math.inf, backward_s=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionPricer:
    """Prices conversions over ``tp`` ranks, of which so many share a node."""

    tp: int
    cluster: ClusterSpec
    ranks_per_node: int
    _known: dict[tuple[int, bool, Placement, Port], ConversionCost] = field(default_factory=dict)
    _known_s: dict[Message, float] = field(default_factory=dict)

    def cost(self, nbytes: int, learns: bool, placement: Placement, port: Port) -> ConversionCost:
        """What it costs to read a tensor of ``nbytes`` in all, left in a placement, by a port.

        Args:
            learns: whether a gradient comes back.
        """
        key = nbytes, learns, placement, port
        if key not in self._known:
            self._known[key] = self._cost(*key)
        return self._known[key]

    def motion_s(self, motion: Motion, nbytes: int) -> float:
        """Seconds of moving a tensor of ``nbytes`` in all."""
        return self._sent_s(motion_messages(motion, nbytes, self.tp))

    def _cost(self, nbytes: int, learns: bool, placement: Placement, port: Port) -> ConversionCost:
        if not is_possible(placement, port):
            return IMPOSSIBLE
        found = conversion(placement, port, differentiable=learns)
        if found is None:
            return FREE
        forward, backward = messages(found, nbytes, self.tp)
        return ConversionCost(
            forward_s=self._sent_s(forward),
            backward_s=self._sent_s(backward),
            forward=forward,
            backward=backward,
        )

    def _sent_s(self, sent: tuple[Message, ...]) -> float:
        return sum(self._message_s(message) for message in sent)

    def _message_s(self, message: Message) -> float:
        if message not in self._known_s:
            kind, nbytes = message
            self._known_s[message] = collective_s(
                cast(CollectiveKind, kind), nbytes, self.tp, self.ranks_per_node, self.cluster
            ) + message_host_s(self.cluster.device)
        return self._known_s[message]
