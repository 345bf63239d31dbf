"""Train a small GPT-2 on four processes and on one, and compare the losses step by step.

    python -m torch.distributed.run --standalone --nproc-per-node 4 examples/02_train_parallel.py

Byte-level, on this repository's own text. The planner picks the plan for ``cpu-gloo`` with tensor
parallelism pinned to 2. Exits with 1 when any loss differs by more than 1e-3.
"""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, logging

import autoplan

STEPS = 30
BATCH = 16
TOKENS = 64
LEARNING_RATE = 1e-3
TOLERANCE = 1e-3
ROOT = Path(__file__).parent.parent

Batch = dict[str, torch.Tensor]


def build_model() -> GPT2LMHeadModel:
    """The same weights on every rank."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=TOKENS, n_embd=128, n_layer=4, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def read_batches() -> list[Batch]:
    """Global batches of windows of the repository's Python files; the same on every rank."""
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "autoplan").rglob("*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(1)
    starts = torch.randint(len(data) - TOKENS, (STEPS, BATCH), generator=draw).tolist()
    windows = [torch.stack([data[at : at + TOKENS] for at in step]) for step in starts]
    return [{"input_ids": ids, "labels": ids} for ids in windows]


def train_parallel(model: GPT2LMHeadModel, batches: list[Batch]) -> list[float]:
    """Losses of the steps on all ranks."""
    pm = autoplan.compile(model, batches[0], global_batch=BATCH, precision="fp32", pins={"tp": 2})
    if dist.get_rank() == 0:
        plan = pm.plan
        print(f"planned: dp {plan.mesh.dp} x tp {plan.mesh.tp}, ZeRO {plan.zero}", end=", ")
        print(f"microbatches {plan.num_microbatches} of {plan.microbatch}", flush=True)
    optimizer = torch.optim.AdamW(pm.parameters(), lr=LEARNING_RATE)
    losses = []
    for batch in batches:
        losses.append(pm.train_step(pm.shard_batch(batch)).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def train_alone(model: GPT2LMHeadModel, batches: list[Batch]) -> Iterator[float]:
    """Losses of the same steps in this process alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def main() -> int:
    logging.set_verbosity_error()
    model = build_model()
    alone = copy.deepcopy(model)
    batches = read_batches()
    parallel_losses = train_parallel(model, batches)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    dist.destroy_process_group()
    if rank != 0:
        return 0
    print(f"step  {ranks} ranks  one process  difference")
    differences = []
    pairs = zip(parallel_losses, train_alone(alone, batches), strict=True)
    for step, (ours, truth) in enumerate(pairs):
        differences.append(abs(ours - truth))
        print(f"{step:4}  {ours:7.5f}  {truth:11.5f}  {differences[-1]:10.1e}", flush=True)
    print(f"largest difference {max(differences):.1e}, allowed {TOLERANCE:.0e}")
    return 0 if all(difference <= TOLERANCE for difference in differences) else 1


if __name__ == "__main__":
    sys.exit(main())
