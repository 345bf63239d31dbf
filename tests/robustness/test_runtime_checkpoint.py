"""Checkpoints under a kill at any moment, under damage, and under wrong use."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import CheckpointError
from autoplan.runtime import checkpoint
from tests.distributed.handmade import BATCH, Cell, net_batch, parallel_net
from tests.distributed.training import make_optimizer

CELL = Cell(dtype=torch.float32)


def trained(seed: int = 0):
    """A module after one step, and its optimizer."""
    pm = parallel_net(CELL, seed)
    optimizer = make_optimizer("adamw", pm.parameters())
    pm.train_step(net_batch(BATCH, torch.float32))
    optimizer.step()
    return pm, optimizer


def weights(pm) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in pm.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def die(*_args, **_kwargs) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(path: Path, victim: str, *, after: bool) -> None:
    """Saves another module over ``path``, killed just before or after ``victim`` runs."""
    pm, optimizer = trained(seed=1)
    original = getattr(checkpoint, victim)

    def dying(*args, **kwargs):
        if after:
            original(*args, **kwargs)
        die()

    with mock.patch.object(checkpoint, victim, dying):
        pm.save(path, optimizer, extra={"save": "new"})


def in_dying_process(function, *args, **kwargs) -> None:
    process = multiprocessing.get_context("fork").Process(target=function, args=args, kwargs=kwargs)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("victim", "after", "survivor"),
    [
        ("write_pieces", False, "old"),
        ("write_pieces", True, "old"),
        ("_replace_index", False, "old"),
        ("_replace_index", True, "new"),
        ("_remove_others", True, "new"),
    ],
)
def test_a_kill_leaves_the_old_or_the_new_one_whole(tmp_path, victim, after, survivor):
    old, optimizer = trained(seed=0)
    old.save(tmp_path, optimizer, extra={"save": "old"})
    in_dying_process(save_and_die, tmp_path, victim, after=after)
    pm, optimizer = trained(seed=2)
    assert pm.load(tmp_path, optimizer) == {"save": survivor}
    assert same(weights(pm), weights(old if survivor == "old" else trained(seed=1)[0]))
    pm.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def die_while_writing(path: Path) -> None:
    """Is killed when half of the data file is on disk."""
    pm, optimizer = trained(seed=1)
    blocks = iter(range(5))

    def sync(_descriptor: int) -> None:
        if next(blocks) == 0:
            file = next(path.glob("data-*/*.safetensors"), None)
            newest = max(path.glob("data-*/*.safetensors"), key=lambda f: f.stat().st_mtime_ns)
            assert file is not None
            os.truncate(newest, newest.stat().st_size // 2)
            die()

    with mock.patch.object(os, "fsync", sync):
        pm.save(path, optimizer)


def test_a_half_written_file_is_never_read(tmp_path):
    old, optimizer = trained(seed=0)
    old.save(tmp_path, optimizer, extra={"save": "old"})
    in_dying_process(die_while_writing, tmp_path)
    pm, optimizer = trained(seed=2)
    assert pm.load(tmp_path, optimizer) == {"save": "old"}
    assert same(weights(pm), weights(old))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    pm, optimizer = trained()
    pm.save(path, optimizer, extra={"step": 3})
    return path


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_flipped_bit_is_found(saved, data):
    files = sorted(path for path in saved.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    raw = file.read_bytes()
    position = data.draw(st.integers(0, len(raw) - 1))
    damaged = bytearray(raw)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    pm = parallel_net(CELL, seed=5)
    before = weights(pm)
    file.write_bytes(damaged)
    try:
        with pytest.raises(CheckpointError, match=r"(damaged|missing)") as error:
            pm.load(saved)
    finally:
        file.write_bytes(raw)
    assert "\n" not in str(error.value)
    assert same(weights(pm), before)


@pytest.mark.parametrize("change", ["truncate", "remove", "append"])
def test_a_changed_length_is_found(saved, change):
    for file in [path for path in saved.rglob("*") if path.is_file()]:
        raw = file.read_bytes()
        if change == "remove":
            file.unlink()
        else:
            file.write_bytes(raw[:-1] if change == "truncate" else raw + b" ")
        try:
            with pytest.raises(CheckpointError):
                parallel_net(CELL).load(saved)
        finally:
            file.write_bytes(raw)


def test_missing_and_other_model(saved, tmp_path):
    pm = parallel_net(CELL)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        pm.load(tmp_path / "none")
    other = parallel_net(Cell(dtype=torch.float32, hidden=24))
    with pytest.raises(CheckpointError, match=r"of another model: 'blocks.0.down.weight'"):
        other.load(saved)


def test_optimizers_that_do_not_match(saved, tmp_path):
    pm, _ = trained()
    with pytest.raises(CheckpointError, match="holds the state of AdamW, not of SGD"):
        pm.load(saved, torch.optim.SGD(pm.parameters(), lr=1))
    two = [{"params": [p]} for p in pm.parameters()]
    with pytest.raises(CheckpointError, match="parameter groups"):
        pm.load(saved, torch.optim.AdamW(two))
    with pytest.raises(CheckpointError, match=r"build it from pm\.parameters"):
        pm.save(tmp_path, torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1))
    pm.save(tmp_path / "bare")
    with pytest.raises(CheckpointError, match="without an optimizer"):
        pm.load(tmp_path / "bare", torch.optim.AdamW(pm.parameters()))


def test_state_that_cannot_be_split_is_refused(tmp_path):
    pm, _ = trained()
    optimizer = torch.optim.Adafactor(pm.parameters())
    optimizer.step()
    with pytest.raises(CheckpointError, match=r"Adafactor keeps 'row_var'"):
        pm.save(tmp_path, optimizer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "extra", [{"a": object()}, {"milestones": {30: 1}}, {"a": [(1, 2)]}, {"t": torch.zeros(2)}]
)
def test_extra_must_be_json(tmp_path, extra):
    pm, _ = trained()
    with pytest.raises(CheckpointError, match=r"^extra"):
        pm.save(tmp_path, extra=extra)
    assert not list(tmp_path.iterdir())


def test_state_dict_has_the_models_own_names():
    pm, _ = trained()
    assert set(pm.state_dict()) == {*dict(pm.named_parameters()), "shift"}
