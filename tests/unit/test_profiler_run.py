"""``autoplan profile`` on this machine: ranks of its own, real operators and messages, one file."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoplan.cli import main
from autoplan.profiler import run
from autoplan.profiler.probes import Exchange, Idle, Overlap, Sharing, Workspace
from autoplan.profiler.schedule import (
    SENT,
    attention,
    optimizer_step,
    products,
    small_steps,
    streaming,
)
from autoplan.profiler.torch_bench import TorchBench
from hardware_profiles.load import load

PROBES = (
    Workspace(),
    Sharing(devices=2, cores=1.0),
    *products((32, 64, 16), "float32"),
    *products((31, 17, 5), "bfloat16"),
    *streaming((8, 32), "float32"),
    *attention((1, 2, 8, 16), "float32"),
    optimizer_step(100),
    *small_steps(),
    Idle(name="idle"),
    Overlap(nbytes=4096, ranks=2),
    *(
        Exchange(kind=kind, nbytes=nbytes, ranks=2, per_node=2, in_use=2)
        for kind in (*SENT, "send_recv")
        for nbytes in (64, 4096)
    ),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two ranks, few probes and little time for each; the folder of files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "probes_for", lambda _: PROBES)
    monkeypatch.setattr(run, "_LEAST_RANKS", 2)
    monkeypatch.setattr(run, "_MOST_RANKS", 2)
    monkeypatch.setattr(run, "_SLICES_S", {True: 1e-3})
    monkeypatch.setattr(run, "_ROUNDS", {True: 2})
    monkeypatch.setattr("autoplan.profiler.measure.MORE_PASSES", 0)
    monkeypatch.setattr("autoplan.profiler.measure.LONG_S", 1e-3)
    return tmp_path


def test_the_command_writes_a_profile_of_this_machine(small, capsys):
    assert main(["profile", "--quick", "-o", str(small / "mine.toml")]) == 0
    printed = capsys.readouterr()
    assert "2 processes on " in printed.out
    assert printed.err.count("profile saved: ") == 2
    cluster = load(small / "mine.toml")
    assert (cluster.gpus_per_node, cluster.backend) == (2, "gloo")
    assert cluster.provenance["device.workspace_bytes"] == "measured"
    assert (cluster.device.optimizer_piece_s or 0) > (cluster.device.optimizer_tensor_s or 1)
    assert cluster.machine is not None
    assert cluster.machine.threads == 1
    (kept,) = (small / "cache").rglob("*.toml")
    assert load(kept) == cluster


def test_ctrl_c_keeps_what_was_measured(small, capsys, monkeypatch):
    """As a terminal does, the signal goes to all processes; rank 0 sends it in its fourth probe."""
    here = os.getpid()

    @contextmanager
    def interrupting():
        told = []

        def show(_: float, __: str) -> None:
            told.append(0)
            if len(told) == 4:
                os.kill(here, signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        yield show

    monkeypatch.setattr("autoplan.cli.progress.ProgressDisplay", interrupting)
    assert main(["profile", "--quick", "-o", str(small / "mine.toml")]) == 130
    assert "more: interrupted" in capsys.readouterr().out
    cluster = load(small / "mine.toml")
    assert cluster.provenance["device.workspace_bytes"] == "measured"
    assert cluster.provenance["intra_node.efficiency"] == "assumed"
    assert not list((small / "cache").rglob("*.toml"))


def test_a_rank_that_fails_is_named(small, monkeypatch, capsys):
    def breaks(self: TorchBench, _: object) -> None:
        if self.rank == 1:
            raise RuntimeError("no such message")

    monkeypatch.setattr(TorchBench, "overlap", breaks)
    monkeypatch.setattr("autoplan.profiler.measure.LEAST_IDLE", 0.0)
    assert main(["profile", "--quick"]) == 1
    assert "error: measuring failed on rank " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-o", "mine.json"], "-o mine.json: the name of a profile ends in .toml"),
        (["-o", "nowhere/mine.toml"], "nowhere is not a directory"),
        (["--base", "cpu-glo"], "unknown profile 'cpu-glo'; did you mean 'cpu-gloo'?"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(arguments, complaint, capsys):
    assert main(["profile", *arguments]) == 1
    assert complaint in capsys.readouterr().err


def test_signals_are_as_before():
    before = signal.getsignal(signal.SIGINT)
    with run._wishes_to_stop() as wants_to_stop:
        assert not wants_to_stop()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # what torchrun passes on is the same wish
        assert wants_to_stop()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_a_quick_profile_meets_its_own_measurements(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["profile", "--quick", "-o", str(tmp_path / "mine.toml")]) == 0
    assert "predicted against measured" in capsys.readouterr().out
    assert load(tmp_path / "mine.toml").provenance["device.launch_s"] == "measured"
