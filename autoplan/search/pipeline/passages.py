"""Lower bounds by what the first and the last microbatch of 1F1B take on other ranks than one.

With p ranks and m microbatches, rank r runs w = p - 1 - r forwards ahead, and N = m - 1 - w
forwards and backwards in turn. Let c = F + B be those of one microbatch, S the seconds that one
takes from r through all ranks behind it and back, and P and Q those that it takes there and back
through all ranks before r. Paths on which a step takes no less than

    P + F + S + B + N c + (w B or, where N > 0, S) + (Q and what follows the first rank's last
    backward, or what follows that of r)

begin with the first microbatch, go on with what r runs, and go from its last backward, or with the
last microbatch through the ranks behind it, either to the first rank or to the end of r's own
messages and optimizer. P, Q and S are the least of any cuts with the range of r, so that each range
has a bound of its own: no plan with it is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.ranges import Bands

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Passages:
    """Seconds of ranges, by rank, length and end.

    Attributes:
        once: as ``share`` F + B with messages to both sides, with what follows the last backward of
            the first rank; as ``extra`` N c + w B. inf where there is no range.
        there: as ``share``, F and the message to the next rank.
        ending_s: F + B and a message to the next rank, with what follows the last backward.
        turns_s: N c.
        sent_s: a message to the next rank, by rank and end.
        start: by length and end, the first item.
        left: by rank, N.
    """

    once: Bands
    there: Bands
    ending_s: Floats
    turns_s: Floats
    sent_s: Floats
    start: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]

    def last_s(self) -> Floats:
        """S, where N > 0, by rank, length and end; else 0."""
        last_s = (self.sent_s + self.once.behind())[:, None, :]
        return np.where(self.left[:, None, None] > 0, last_s, 0.0)

    def least_s(self) -> Floats:
        """What a step takes whose rank has a range, by rank, length and end."""
        before_s, there_s = (of.before()[:, self.start] for of in (self.once, self.there))
        first_s = np.maximum(before_s + self.once.share, there_s + self.ending_s)
        again_s = np.maximum(self.once.extra, self.turns_s + self.last_s())
        return first_s + self.once.behind()[:, None, :] + again_s
