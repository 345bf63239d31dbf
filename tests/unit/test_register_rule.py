"""Rules of users' operators are believed only where every piece gives what one device gives."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autoplan
from autoplan.codegen.pipeline import emit_choices
from autoplan.custom_ops.register import check_rule
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.rules import GraphRules
from autoplan.trace.capture import capture
from tests.parity.choose import random_program, replicated
from tests.parity.simulate import assert_same, one_device, sharded

LIBRARY = torch.library.Library("rules_under_test", "DEF")
LIBRARY.define("contract(str text, Tensor x, Tensor y) -> Tensor")
LIBRARY.impl("contract", torch.einsum, "CompositeImplicitAutograd")


@torch.library.custom_op("rules_under_test::project", mutates_args=())
def project(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


@torch.library.custom_op("rules_under_test::scaled_softmax", mutates_args=())
def scaled_softmax(x: Tensor, scale: float) -> Tensor:
    return torch.softmax(x * scale, -1)


@torch.library.custom_op("rules_under_test::bare", mutates_args=())
def bare(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("rules_under_test::untrained", mutates_args=())
def untrained(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("rules_under_test::misshapen", mutates_args=())
def misshapen(x: Tensor) -> Tensor:
    return x * 2


@project.register_fake
def _(x, weight):
    return x.new_empty(*x.shape[:-1], weight.shape[1])


@scaled_softmax.register_fake
def _(x, scale):
    return torch.empty_like(x)


@untrained.register_fake
def _(x):
    return torch.empty_like(x)


@misshapen.register_fake
def _(x):
    return x.new_empty(*x.shape, 1)


def _project_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad @ weight.T, x.flatten(0, -2).T @ grad.flatten(0, -2)


def _softmax_backward(ctx, grad):
    (result,) = ctx.saved_tensors
    return result * (grad - (grad * result).sum(-1, keepdim=True)) * ctx.scale, None


def _keep_result(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.scale = inputs[1]


project.register_autograd(
    _project_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)
scaled_softmax.register_autograd(_softmax_backward, setup_context=_keep_result)


@st.composite
def contractions(draw):
    """Operands and result of an einsum without repeated letters in one tensor: ab, bc -> ac."""
    left = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    right = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    both = sorted({*left, *right})
    out = draw(st.lists(st.sampled_from(both), max_size=3, unique=True))
    return left, right, out


def _written(left, right, out):
    return f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}"


def _example(left, right, out):
    shapes = [4] * len(left), [4] * len(right)
    tensors = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return (f"{''.join(left)},{''.join(right)}->{''.join(out)}", *tensors)


@settings(deadline=None, max_examples=15)
@given(parts=contractions())
def test_equations_that_are_those_of_the_operator_hold(parts):
    check_rule("rules_under_test::contract", _written(*parts), example=_example(*parts))


@settings(deadline=None, max_examples=30)
@given(parts=contractions(), data=st.data())
def test_equations_of_another_operator_are_refused(parts, data):
    """Sizes are all alike, so that only running on pieces tells one letter from another."""
    left, right, out = parts
    terms = [left, right, out]
    changed = data.draw(st.sampled_from([at for at in range(3) if terms[at]]))
    others = [list(p) for p in itertools.permutations("abcd", len(terms[changed]))]
    terms[changed] = data.draw(st.sampled_from([o for o in others if o != terms[changed]]))
    example = _example(*parts)
    if _loops(terms) <= _loops(parts):
        check_rule("rules_under_test::contract", _written(*terms), example=example)
        return
    with pytest.raises(UnsupportedModelError, match="is wrong for") as caught:
        check_rule("rules_under_test::contract", _written(*terms), example=example)
    assert "\n" not in str(caught.value)


def _loops(terms):
    """For every letter the dim of each tensor that it is; names of letters do not matter."""
    letters = {letter for term in terms for letter in term}
    return {tuple(term.index(x) if x in term else None for term in terms) for x in letters}


def test_a_letter_that_is_no_loop_is_refused_with_the_placement_and_kept_whole():
    name, example = "rules_under_test::scaled_softmax", (torch.randn(8, 8).double(), 0.5)
    with pytest.raises(UnsupportedModelError) as caught:
        check_rule(name, "b s -> b s", example=example)
    assert "split by s over 2 ranks (Shard(1) -> Shard(1)) it gives another result" in str(
        caught.value
    )
    assert "whole='s'" in str(caught.value)
    check_rule(name, "b s -> b s", whole="s", example=example)


@pytest.mark.parametrize(
    ("operator", "equation", "message"),
    [
        ("rules_under_test::bare", "a -> a", "no fake kernel that runs"),
        ("rules_under_test::misshapen", "a b -> a b", "the fake kernel of .* gives shapes"),
        ("rules_under_test::untrained", "a -> a", "has no gradient"),
        ("rules_under_test::absent", "a -> a", "not registered in this process"),
        ("rules_under_test::project", "a b", "is no equation"),
        ("rules_under_test::project", "b s h, k h -> b s k", "fails on tensors of shapes"),
        ("rules_under_test::project", "b s h, h k -> b s", "does not describe a call"),
        ("rules_under_test::scaled_softmax", "b s -> b s", "takes x, scale: give arguments"),
        ("aten::mm", "a b, b c -> a c", "a rule of autoplan's own"),
        ("aten::mul_", "a, a -> a", "operator aten.mul_.default is not registered"),
        ("project", "a b -> a b", "names no operator"),
    ],
)
def test_refused_in_one_line(operator, equation, message):
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        check_rule(operator, equation)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_examples_of_low_precision_are_tried(dtype):
    name, example = "rules_under_test::scaled_softmax", (torch.randn(4, 8).to(dtype), 0.5)
    check_rule(name, "b s -> b s", whole="s", example=example)
    with pytest.raises(UnsupportedModelError, match="is wrong for"):
        check_rule(name, "b s -> b s", example=example)


LIBRARY.define("half(Tensor x) -> Tensor")
LIBRARY.define("centred(Tensor x) -> Tensor")
LIBRARY.define("silent(Tensor x) -> Tensor")
LIBRARY.define("noisy(Tensor x) -> Tensor")


def _only_bfloat16(x):
    if x.dtype != torch.bfloat16:
        raise TypeError("takes bfloat16")
    return torch.softmax(x, -1)


def _fails_without_a_word(x):
    raise RuntimeError


LIBRARY.impl("half", _only_bfloat16, "CompositeImplicitAutograd")
LIBRARY.impl("centred", lambda x: x - x.mean(0), "CompositeImplicitAutograd")
LIBRARY.impl("silent", _fails_without_a_word, "CompositeImplicitAutograd")
LIBRARY.impl("noisy", lambda x: x * torch.rand_like(x), "CompositeImplicitAutograd")


def test_an_operator_of_low_precision_alone_is_tried_in_it():
    example = (torch.randn(4, 8).bfloat16(),)
    check_rule("rules_under_test::half", "b s -> b s", whole="s", example=example)
    with pytest.raises(UnsupportedModelError, match="split by s over 2 ranks"):
        check_rule("rules_under_test::half", "b s -> b s", example=example)


def test_the_cure_can_be_followed():
    """What is offered as ``whole=`` is taken, along with what was whole before."""
    example = (torch.randn(8, 8, 8, dtype=torch.float64), 0.5)
    name = "rules_under_test::scaled_softmax"
    with pytest.raises(UnsupportedModelError, match="whole='a s'"):
        check_rule(name, "b a s -> b a s", whole="a", example=example)
    check_rule(name, "b a s -> b a s", whole="a s", example=example)
    with pytest.raises(UnsupportedModelError, match=r"letters in the place of \.\.\.") as caught:
        check_rule("rules_under_test::centred", "... s -> ... s")
    assert "whole=" not in str(caught.value)


def test_an_error_without_a_text_is_named_by_its_class():
    with pytest.raises(UnsupportedModelError, match="RuntimeError; correct the equation"):
        check_rule("rules_under_test::silent", "b s -> b s")


def test_what_draws_at_random_has_no_rule():
    with pytest.raises(UnsupportedModelError, match="draws at random"):
        check_rule("rules_under_test::noisy", "b s -> b s")


class Projects(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(8, 16, dtype=torch.float64))
        self.down = nn.Parameter(torch.randn(16, 8, dtype=torch.float64))

    def forward(self, x):
        hidden = torch.ops.rules_under_test.project(x, self.up).tanh()
        return torch.ops.rules_under_test.project(hidden, self.down).square().mean()


@pytest.fixture(scope="module")
def projecting():
    autoplan.register_rule("rules_under_test::project", "... h, h k -> ... k")
    autoplan.register_rule("rules_under_test::project", "... h, h k -> ... k")
    model, batch = Projects(), {"x": torch.randn(6, 4, 8, dtype=torch.float64)}
    return model, batch, capture(model, batch).at_batch(6)


def test_a_registered_rule_is_planned_with(projecting):
    _, _, graph = projecting
    rules = GraphRules(graph)
    calls = [node for node in graph.of_kind("call") if "project" in node.target]
    labels = [{s.label for s in rules.strategies(n, MeshAxis("tp", 2))} for n in calls]
    assert labels == [{"replicate", "k", "d1", "h"}] * 2
    assert batch_layout(graph).mixing == ()


@pytest.mark.parametrize("seed", range(4))
def test_a_registered_rule_runs_like_one_device(projecting, seed):
    model, batch, graph = projecting
    truth = one_device(model, lambda: model(**batch))
    assert_same(sharded(random_program(graph, 2, seed), model, batch), truth)
    emitted = emit_choices(replicated(graph, 2, dp=3, num_microbatches=2), "model")
    assert_same(sharded(emitted, model, batch), truth)


def test_an_operator_has_one_rule(projecting):
    with pytest.raises(UnsupportedModelError, match=r"has the rule .* already"):
        autoplan.register_rule("rules_under_test::project", "b s h, h k -> b s k")
