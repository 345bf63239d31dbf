"""The whole way in one screen: load the model, capture its graph, plan, emit, run.

PyTorch is imported by the functions that need it, so that plans can be read and reported without.
"""

from __future__ import annotations
