"""Each finding names the line that it is about; line numbers are looked up in this file's text."""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import autoplan
from autoplan.cli.main import main
from autoplan.errors import UnsupportedModelError
from autoplan.report.doctor import print_findings

SOURCE = Path(__file__).read_text().splitlines()


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("doctor_test::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


double.register_autograd(lambda ctx, gradient: gradient * 2)


class Model(nn.Module):
    """A linear layer around a function under test."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("seen", torch.zeros(16))
        self.function = function

    def forward(self, x):
        return self.function(self, self.linear(x)).sum()


def _branch(model, y):
    if y.sum() > 0:  # line: data-dependent branch
        return y * 2
    return y


def _number(model, y):
    return y * int(y.argmax())  # line: data-dependent value


def _select(model, y):
    return y[y > 0]  # line: data-dependent size


def _custom(model, y):
    return Straight.apply(y)  # line: custom autograd


def _hook(model, y):
    y.register_hook(lambda gradient: gradient)  # line: gradient hook
    return y


def _in_place(model, y):
    return y.cumsum_(1)  # line: in-place operator


def _buffer(model, y):
    model.seen = y.mean(0).detach()  # line: buffer mutation
    return y


def _python_random(model, y):
    return y * random.random()


def _count(model, y):
    model.calls = getattr(model, "calls", 0) + 1
    return y


def _breaks(model, y):
    return y @ torch.ones(3, 3)  # line: graph break


def _unknown(model, y):
    return torch.ops.doctor_test.double(y)  # line: operator without a rule


def _mixed(model, y):
    return y.sort(0).values  # line: mixes the batch


def _normed(model, y):
    return model.norm(y)


def _drawn(model, y):
    return y * torch.rand(16)  # line: randomness


def _dropped(model, y):
    return F.dropout(y, 0.5)  # line: randomness (dropout)


STOPS = {
    "data-dependent branch": _branch,
    "data-dependent value": _number,
    "data-dependent size": _select,
    "custom autograd": _custom,
    "gradient hook": _hook,
    "in-place operator": _in_place,
    "buffer mutation": _buffer,
    "graph break": _breaks,
}
LIMITS = {
    "operator without a rule": _unknown,
    "mixes the batch": _mixed,
    "randomness": _drawn,
}


def _line(kind):
    number = next(n for n, text in enumerate(SOURCE, 1) if text.endswith(f"# line: {kind}"))
    return f"tests/unit/test_doctor.py:{number}", SOURCE[number - 1].strip()


def _examined(function):
    return autoplan.doctor(Model(function), (torch.randn(4, 16),))


@pytest.mark.parametrize("kind", STOPS)
def test_what_stops_is_found_at_its_line(kind):
    found = _examined(STOPS[kind])
    (finding,) = [one for one in found.findings if one.effect == "stops"]
    assert finding.kind == kind
    assert [(place.where, place.text) for place in finding.places] == [_line(kind)]
    assert finding.cost
    assert finding.cure
    assert found.operators is None


@pytest.mark.parametrize(("kind", "function"), [("randomness", _python_random), ("state", _count)])
def test_what_stops_without_a_line(kind, function):
    assert [one.kind for one in _examined(function).findings] == [kind]


@pytest.mark.parametrize("kind", LIMITS)
def test_what_limits_is_found_at_its_line(kind):
    (finding,) = _examined(LIMITS[kind]).findings
    assert (finding.kind, finding.effect) == (kind, "limits")
    assert [(place.where, place.text) for place in finding.places] == [_line(kind)]


def test_batch_norm_and_dropout():
    (normed,) = _examined(_normed).findings
    assert (normed.kind, normed.effect) == ("BatchNorm", "limits")
    (dropped,) = _examined(_dropped).findings
    assert (dropped.kind, dropped.effect) == ("randomness", "costs")
    assert dropped.places[0].where == _line("randomness (dropout)")[0]


def test_a_model_without_any_of_it_is_clean():
    found = _examined(lambda model, y: torch.relu(y))
    assert found.ok
    assert found.operators == 3


class Many(nn.Module):
    """One of everything, on the way to a loss."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, ids, labels):
        x = _custom(self, self.tokens(ids))
        x = _branch(self, _in_place(self, x))
        x = _buffer(self, x) * _number(self, x)
        x = _unknown(self, x)
        return F.cross_entropy(self.head(x), labels) + _select(self, x).sum()


def test_all_is_found_in_one_run_the_gravest_first():
    ids = torch.zeros(4, dtype=torch.long)
    found = autoplan.doctor(Many(), (ids, ids))
    assert {one.kind for one in found.findings if one.effect == "stops"} == {
        "custom autograd", "data-dependent branch", "in-place operator", "buffer mutation",
        "data-dependent value", "data-dependent size",
    }  # fmt: skip
    assert [one.kind for one in found.findings if one.effect != "stops"] == [
        "operator without a rule", "indivisible dim", "tied weights",
    ]  # fmt: skip
    effects = [one.effect for one in found.findings]
    assert effects == sorted(effects, key=["stops", "limits", "costs"].index)


class Moving(nn.Module):
    """Writes to what lasts, in three ways that could be passed over, and branches at the end."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16, max_norm=1.0)
        self.twice, self.aside = nn.BatchNorm1d(16), nn.BatchNorm1d(16)

    def forward(self, ids):
        x = self.table(ids)  # line: parameter mutation
        x = checkpoint(self.twice, x, use_reentrant=False)  # line: BatchNorm
        self.aside(x)  # line: BatchNorm aside
        if x.sum() > 0:  # line: branch behind
            x = x * 2
        return x.sum()


def test_the_look_goes_on_behind_what_writes_to_weights_and_statistics():
    found = autoplan.doctor(Moving(), (torch.zeros(4, dtype=torch.long),))
    stops = [(one.kind, *(p.where for p in one.places)) for one in found.findings[:4]]
    assert sorted(stops) == sorted(
        [
            ("parameter mutation", _line("parameter mutation")[0]),
            ("BatchNorm", _line("BatchNorm")[0]),
            ("BatchNorm", _line("BatchNorm aside")[0]),
            ("data-dependent branch", _line("branch behind")[0]),
        ]
    )
    assert {one.effect for one in found.findings[4:]} <= {"limits", "costs"}


class Attention(nn.Module):
    def __init__(self, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q = nn.Linear(48, heads * 8)
        self.kv = nn.Linear(48, kv_heads * 16)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.heads, 8)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (self.kv_heads, 16)).transpose(1, 2).chunk(2, -1)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "expected"),
    [
        (16, 16, []),
        (12, 12, ["12, heads of attention, is no multiple of 8"]),
        (16, 2, ["2, heads of keys and values, is no multiple of 4, 8"]),
        (6, 6, ["6, heads of attention, is no multiple of 4, 8"]),
    ],
)
def test_heads_that_common_degrees_do_not_divide(heads, kv_heads, expected):
    found = autoplan.doctor(Attention(heads, kv_heads), (torch.randn(2, 5, 48),))
    assert [one.what for one in found.findings if one.kind == "indivisible dim"] == expected


def test_the_given_model_is_left_as_it_was():
    model = Model(_buffer)
    autoplan.doctor(model, (torch.randn(4, 16),))
    assert torch.equal(model.seen, torch.zeros(16))


def test_inputs_that_are_not_the_models_are_an_error():
    with pytest.raises(UnsupportedModelError, match="forward takes 1"):
        autoplan.doctor(Model(_in_place), (torch.randn(4, 16), torch.randn(4, 16)))


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_has_every_line_within_its_width(width):
    ids = torch.zeros(4, dtype=torch.long)
    found = autoplan.doctor(Many(), (ids, ids))
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_findings(found, console)
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    for finding in found.findings:
        assert finding.kind in printed
        assert all(place.where in printed for place in finding.places)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "patients.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, sick):\n"
        "        super().__init__()\n"
        "        self.linear, self.sick = nn.Linear(8, 8), sick\n\n"
        "    def forward(self, x):\n"
        "        y = self.linear(x)\n"
        "        return (y.cumsum_(1) if self.sick else y).sum()\n\n\n"
        "def sick():\n    return Model(True), (torch.randn(2, 8),)\n\n\n"
        "def well():\n    return Model(False), (torch.randn(2, 8),)\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "patients"
    sys.modules.pop("patients", None)


def test_the_command_has_three_exit_codes(module, capsys):
    assert main(["doctor", f"{module}:well"]) == 0
    assert main(["doctor", f"{module}:absent"]) == 1
    capsys.readouterr()
    assert main(["doctor", f"{module}:sick", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    (finding,) = printed["findings"]
    (place,) = finding["places"]
    assert place == {
        "where": "patients.py:12",
        "text": "return (y.cumsum_(1) if self.sick else y).sum()",
    }
