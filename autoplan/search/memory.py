"""Device memory of a plan by category, at the worse of the backward and the optimizer's step.

The same sums as ``Problem``'s, in bytes and apart by category. With one pipeline stage the
activations of one microbatch are live at a time. What is not known is taken at its worst: all
tensors of an operator at work are live together with everything that is kept.
"""

from __future__ import annotations
