"""What is to be planned: a module of the caller's, or a model by name.

A name is a zoo entry, the path of a ``config.json``, or ``pkg.mod:factory``. The plan keeps the
name, so that a reader of the plan knows what it is for. A factory named in a plan file is never
called on the file's word: only names that the caller gives are run.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autoplan import zoo
from autoplan.errors import PlanError
from autoplan.job import ModelSource
from autoplan.zoo import ModelUnderPlan

if TYPE_CHECKING:
    from torch import nn

Shapes = Mapping[str, tuple[int, ...]]


def describe(model: nn.Module | str, seq_len: int | None, inputs: Shapes | None) -> ModelSource:
    """The source to write into the plan.

    Raises:
        PlanError: a name that is no model, or sizes for a module that brings its own inputs.
    """
    shapes = tuple(sorted((inputs or {}).items()))
    if isinstance(model, str):
        return ModelSource(kind=_kind(model), name=model, seq_len=seq_len, inputs=shapes)
    if seq_len is not None or shapes:
        raise PlanError(
            "seq_len and inputs are for models given by name; give a module's sizes by its "
            "example_inputs"
        )
    return ModelSource(kind="object", name=type(model).__name__)


def named(source: ModelSource) -> str:
    """The name by which a plan's model can be built again without being asked for by name.

    Raises:
        PlanError: the model is the user's own code or object, which the caller must give.
    """
    if source.kind == "factory":
        raise PlanError(
            f"the plan is for {source.name}, code that is run only when you name it: "
            f"give --model {source.name}, or model= from Python"
        )
    if source.kind == "object":
        raise PlanError(
            f"the plan is for the module {source.name}, made in Python: use autoplan.explain(plan, "
            "model, example_inputs) there"
        )
    return source.name


def given(
    model: nn.Module | str, source: ModelSource, example_inputs: Any, loss_fn: Any
) -> ModelUnderPlan:
    """The model that a caller gives, with what it is fed.

    Args:
        source: the plan's; its sizes are taken, not its code.

    Raises:
        PlanError: as ``load`` and ``wrap``, and inputs or a loss beside a name.
    """
    if not isinstance(model, str):
        return wrap(model, example_inputs, loss_fn, source)
    if example_inputs is not None or loss_fn is not None:
        raise PlanError(
            f"{model} brings its own inputs and loss; give example_inputs and loss_fn with a module"
        )
    return load(describe(model, source.seq_len, dict(source.inputs)))


def load(source: ModelSource) -> ModelUnderPlan:
    """Builds the model that a source names; factories run here.

    Raises:
        PlanError: it cannot be built, or the asked sizes do not apply to it.
    """
    if source.kind == "zoo":
        built = zoo.build(source.name, source.seq_len)
    elif source.kind == "config":
        built = zoo.from_config(source.name, source.seq_len)
    else:
        built = zoo.from_factory(source.name, source.seq_len)
        if source.seq_len is not None:
            _check_length(built, source)
    if source.inputs:
        shapes = dict(source.inputs)
        built = replace(
            built, example_inputs=reshaped(built, shapes), seq_len=_reshaped_length(built, shapes)
        )
    return built


def wrap(
    model: nn.Module, example_inputs: Any, loss_fn: Any, source: ModelSource
) -> ModelUnderPlan:
    """The caller's own module; without example inputs it takes those of the zoo model ``source``.

    Raises:
        PlanError: nothing says what the module is fed with.
    """
    if example_inputs is not None:
        return ModelUnderPlan(
            model=model, example_inputs=example_inputs, loss_fn=loss_fn, seq_len=source.seq_len
        )
    if source.kind not in ("zoo", "config"):
        raise PlanError(
            f"nothing says what {type(model).__name__} is fed with; give example_inputs, a tuple "
            "of arguments or a dict of keyword arguments"
        )
    return replace(load(source), model=model, loss_fn=loss_fn)


def _kind(name: str) -> Literal["zoo", "config", "factory"]:
    if name in zoo.names():
        return "zoo"
    if name.endswith(".json") or Path(name).is_file():
        return "config"
    if ":" in name:
        return "factory"
    close = difflib.get_close_matches(name, zoo.names(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise PlanError(
        f"unknown model {name!r}; {hint}give a name from `autoplan models`, "
        "the path of a config.json, or pkg.mod:factory"
    )


def _named(built: ModelUnderPlan) -> dict[str, Any]:
    """The example inputs by keyword, or by the name of the positional parameter."""
    from autoplan.trace.inputs import named_inputs

    has_loss = built.loss_fn is not None
    named = named_inputs(built.model, built.example_inputs, with_targets=has_loss)
    return {name: value for name, value, _ in named}


def reshaped(built: ModelUnderPlan, shapes: Shapes) -> Any:
    """The example inputs with some of them replaced by zeros of other shapes, by name.

    Raises:
        PlanError: no tensor of that name, or another number of dims.
        UnsupportedModelError: the example inputs are not those of the model.
    """
    named = _named(built)
    for name, shape in shapes.items():
        if name not in named or not hasattr(named[name], "new_zeros"):
            raise PlanError(f"--input {name}: no such tensor; the inputs are {', '.join(named)}")
        if len(shape) != named[name].dim():
            raise PlanError(
                f"--input {name}: {len(shape)} sizes given, but the input has shape "
                f"{tuple(named[name].shape)}"
            )
        named[name] = named[name].new_zeros(shape)
    return named if isinstance(built.example_inputs, dict) else tuple(named.values())


def _reshaped_length(built: ModelUnderPlan, shapes: Shapes) -> int | None:
    """Tokens of a sample once inputs have other shapes; None when these disagree."""
    lengths = {
        shapes.get(name, tuple(value.shape))[1]
        for name, value in _named(built).items()
        if built.seq_len is not None and tuple(getattr(value, "shape", ())[1:2]) == (built.seq_len,)
    }
    return lengths.pop() if len(lengths) == 1 else None


def _check_length(built: ModelUnderPlan, source: ModelSource) -> None:
    shapes = {
        name: tuple(value.shape) for name, value in _named(built).items() if hasattr(value, "shape")
    }
    if not any(source.seq_len in shape[1:] for shape in shapes.values()):
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise PlanError(
            f"--seq-len {source.seq_len}: the factory {source.name} brings its own inputs "
            f"({listed}); change the factory, or use --input"
        )
