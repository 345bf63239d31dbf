"""A program whose operators give other shapes than were worked out is refused before it runs."""

from __future__ import annotations

import pytest

from autoplan.codegen.program import Call, Function, Program, StageProgram, Value
from autoplan.codegen.verify import verify
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Replicate
from autoplan.trace.graph import TorchValue


def value(name, *shape):
    return Value(name=name, shape=shape, dtype="float32", placement=Replicate())


def program(target, args, *outputs, kwargs=(), is_list=False, local_op=None):
    call = Call(
        target=target, args=args, kwargs=kwargs, outputs=outputs, is_list=is_list,
        views=(None,) * len(outputs), keeps=(), local_op=local_op, node="model/the-node",
    )  # fmt: skip
    good = Function(inputs=(), statements=(), outputs=(), frees=())
    bad = Function(inputs=(), statements=(call,), outputs=outputs, frees=((),))
    return one_stage(forward=bad, count=good)


def one_stage(**functions) -> Program:
    """A program of one stage without blocks."""
    stage = StageProgram(
        name="Root", blocks=(), receives=(), sends=(), inputs=(), counts=(), tensors=frozenset(),
        **functions,
    )  # fmt: skip
    return Program(stages=(stage,), blocks=())


X = value("x", 4, 6)


@pytest.mark.parametrize(
    "good",
    [
        program("aten.linear.default", (X, value("w", 3, 6)), value("y", 4, 3)),
        program(
            "aten.split.Tensor", (X, 3, 1), value("y", 4, 3), value("z", 4, 3), is_list=True
        ),
        program("aten.cat.default", ((X, X), 1), value("y", 4, 12)),
        program(
            "aten.arange.default", (4,), value("y", 4),
            kwargs=(("device", TorchValue("device", "cpu")),),
        ),
        program("aten.embedding.default", (X, X), value("y", 9), local_op="stand_in"),
    ],
)  # fmt: skip
def test_right_shapes_pass(good):
    verify(good)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (program("aten.linear.default", (X, value("w", 3, 6)), value("y", 4, 6)), "gives"),
        (program("aten.linear.default", (X, value("w", 3, 5)), value("y", 4, 3)), "does not run"),
        (program("aten.expand.default", (X, (8, 6)), value("y", 8, 6)), "does not run"),
    ],
)
def test_wrong_shapes_are_refused_by_node(bad, message):
    with pytest.raises(UnsupportedModelError, match=f"model/the-node {message}"):
        verify(bad)
