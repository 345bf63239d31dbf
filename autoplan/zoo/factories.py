"""Models from the user's own code: ``package.module:factory``.

The factory takes no arguments and returns the model, or ``(model, example_inputs)``, or
``(model, example_inputs, loss_fn)``. It is user code and runs as such.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autoplan.errors import PlanError
from autoplan.zoo.pretrained import one_line
from autoplan.zoo.subject import ModelUnderPlan
from autoplan.zoo.tasks import token_inputs

_CAUSAL_INPUTS = ("input_ids", "labels")


def from_factory(spec: str, seq_len: int | None = None) -> ModelUnderPlan:
    """Imports and calls a factory.

    Args:
        spec: ``package.module:factory``; the working directory is importable.
        seq_len: tokens per sample for a factory that returns only a transformers causal LM.

    Raises:
        PlanError: the module or the factory cannot be found, raises, or returns something else.
    """
    factory = _find(spec)
    try:
        result = factory()
    except Exception as error:
        raise PlanError(f"the factory {spec} raised {one_line(error)}") from error
    parts = result if isinstance(result, tuple) else (result,)
    return _subject(spec, parts, seq_len)


def _find(spec: str) -> Callable[[], Any]:
    module_name, separator, attribute = spec.partition(":")
    if not (separator and module_name and attribute):
        raise PlanError(f"{spec!r} names no factory; write package.module:function")
    try:
        with _working_directory_importable():
            module = importlib.import_module(module_name)
    except Exception as error:
        raise PlanError(f"cannot import {module_name} for {spec}: {one_line(error)}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        what = "nothing callable" if factory is not None else "nothing"
        raise PlanError(f"{module_name} has {what} named {attribute!r}; check the factory {spec}")
    return factory


def _subject(spec: str, parts: tuple[Any, ...], seq_len: int | None) -> ModelUnderPlan:
    from torch import nn

    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise PlanError(
            f"the factory {spec} returned {_described(parts)}; return a model, "
            "(model, example_inputs) or (model, example_inputs, loss_fn)"
        )
    if len(parts) == 1:
        if seq_len is None or not hasattr(parts[0], "lm_head"):
            raise PlanError(
                f"the factory {spec} returned no example inputs; return (model, example_inputs), "
                "or give --seq-len if it is a causal language model with an lm_head"
            )
        inputs = token_inputs(_CAUSAL_INPUTS, seq_len)
        return ModelUnderPlan(model=parts[0], example_inputs=inputs, seq_len=seq_len)
    if not isinstance(parts[1], (tuple, dict)):
        raise PlanError(
            f"the factory {spec} returned example inputs of type {type(parts[1]).__name__}; "
            "return a tuple of arguments or a dict of keyword arguments"
        )
    loss_fn = parts[2] if len(parts) == 3 else None
    return ModelUnderPlan(model=parts[0], example_inputs=parts[1], seq_len=seq_len, loss_fn=loss_fn)


def _described(parts: tuple[Any, ...]) -> str:
    return f"({', '.join(type(part).__name__ for part in parts)})"


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    directory = os.getcwd()
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        if directory in sys.path:
            sys.path.remove(directory)
