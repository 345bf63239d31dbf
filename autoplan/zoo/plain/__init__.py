"""The most planned models written out in PyTorch, so that planning them needs no transformers.

Importing transformers and one of its models takes longer than tracing the model. These modules have
the same parts under the same names, and run the same operators: their graphs are equal to those of
transformers' models, so a plan made for one runs the other. Whatever a preset asks for that they do
not have is left to transformers.
"""

from autoplan.zoo.plain.build import plain

__all__ = ["plain"]
