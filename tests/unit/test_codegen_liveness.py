"""Names are given on and storages let go exactly after their last use."""

from __future__ import annotations

import gc
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.codegen.liveness import tidy
from autoplan.codegen.pipeline import emit_choices
from autoplan.codegen.program import BlockCall, Call, Convert, Function, Held, Value
from autoplan.runtime.collectives import AxisGroup
from autoplan.sharding.placement import Replicate
from tests.parity.cases import case
from tests.parity.choose import replicated
from tests.parity.simulate import build_sharded


def value(name):
    return Value(name=name, shape=(1,), dtype="float32", placement=Replicate())


def call(name, *args, view=False, keeps=()):
    return Call(
        target="aten.op.default", args=args, kwargs=(), outputs=(value(name),), is_list=False,
        views=(args[0] if view else None,), keeps=keeps,
    )  # fmt: skip


def made(statements, outputs, inputs=()):
    return tidy(
        Function(
            inputs=tuple(inputs),
            statements=tuple(statements),
            outputs=tuple(outputs),
            frees=((),) * len(statements),
        )
    )


def lines(function):
    return [
        f"{s.outputs[0].name}={','.join(a.name for a in s.args)}|{','.join(dead)}"
        for s, dead in zip(function.statements, function.frees, strict=True)
    ]


def test_a_view_takes_the_name_of_a_base_that_is_not_read_again():
    a, b = value("a"), value("b")
    found = made([call("a"), call("b", a, view=True), call("c", b)], [value("c")])
    assert lines(found) == ["a=|", "a=a|", "c=a|"]


def test_a_base_that_is_read_again_keeps_its_name_and_storage():
    a, b, c = value("a"), value("b"), value("c")
    found = made(
        [call("a"), call("b", a, view=True), call("c", a), call("d", b), call("e", c)],
        [value("d"), value("e")],
    )
    assert lines(found) == ["a=|", "b=a|", "c=a|", "d=b|a,b", "e=c|"]


def test_what_autograd_keeps_and_what_is_returned_is_not_deleted():
    a, b, x = value("a"), value("b"), value("x")
    found = made(
        [call("a", x), call("b", a, keeps=("a",)), call("c", b), call("d", b)],
        [value("c"), value("d")],
        inputs=[x],
    )
    assert lines(found) == ["a=x|", "b=a|", "c=b|", "d=b|"]


def test_a_result_that_nothing_reads_is_let_go():
    found = made([call("a"), call("b"), call("c")], [value("c")])
    assert lines(found) == ["a=|a", "b=|b", "c=|"]


def test_a_conversion_takes_the_name_of_what_it_converts():
    convert = Convert(
        function="all_reduce__identity",
        source=value("a"),
        args=(),
        kwargs=(),
        output=value("a_sum"),
    )
    found = made([call("a"), convert, call("b", value("a_sum"))], [value("b")])
    assert found.statements[1].output.name == "a"
    assert found.frees == ((), (), ())


def test_views_of_parameters_are_not_deleted():
    weight = Held(path=("w",), shape=(1,), dtype="float32", placement=Replicate())
    convert = Convert(
        function="identity__all_reduce", source=weight, args=(), kwargs=(), output=value("w_read")
    )
    found = made([convert, call("a", value("w_read")), call("b", value("a"))], [value("b")])
    assert found.frees == ((), (), ())


def test_blocks_in_a_row_share_one_name():
    def block(name, arg):
        return BlockCall(
            path=("h",),
            args=(value(arg),),
            outputs=(value(name),),
            recomputed=False,
            is_random=False,
        )

    found = made([call("a"), block("x", "a"), block("x_2", "x"), call("c", value("x_2"))], [])
    assert [s.outputs[0].name for s in found.statements] == ["a", "x", "x", "c"]
    assert found.frees[1] == ("a",)


class Alive(TorchDispatchMode):
    """The most storage bytes alive at once among what operators returned."""

    def __init__(self):
        super().__init__()
        self.storages, self.peak = weakref.WeakSet(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.storages.add(tensor.untyped_storage())
        gc.collect(0)
        self.peak = max(self.peak, sum(storage.nbytes() for storage in self.storages))
        return result


def test_the_emitted_forward_needs_no_more_memory_than_the_model():
    tested = case("gpt")
    built = build_sharded(
        emit_choices(replicated(tested.graph, 1), "gpt"), tested.model, AxisGroup("tp", 1, 0, "")
    )
    inputs = tuple(tested.batch.values())
    counts = built.count(*inputs)
    with Alive() as ours:
        loss = built(*inputs, counts)
    with Alive() as theirs:
        reference = tested.model(**tested.batch)
    torch.testing.assert_close(loss, reference)
    assert ours.peak <= theirs.peak
