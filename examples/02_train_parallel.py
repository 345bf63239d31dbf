"""Train a small GPT-2 on four processes and on one, and compare the losses step by step.

    python -m torch.distributed.run --standalone --nproc-per-node 4 examples/02_train_parallel.py

    python examples/02_train_parallel.py --dry-run

shows what each rank would hold and do, and runs none.

The text is drawn from a fixed random grammar, so every run trains alike: Adam magnifies rounding a
hundredfold where a batch sets it off. The planner picks the plan for ``cpu-gloo`` with tensor
parallelism pinned to 2. Exits with 1 when any loss differs by more than 1e-3.
"""

import copy
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, logging

import autoplan

STEPS = 30
BATCH = 16
TOKENS = 64
LEARNING_RATE = 1e-3
TOLERANCE = 1e-3
VOCABULARY = 256
SUCCESSORS = 4

Batch = dict[str, torch.Tensor]


def build_model() -> GPT2LMHeadModel:
    """The same weights on every rank."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=128, n_layer=4, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def draw_batches() -> list[Batch]:
    """Global batches in which each token has few successors; the same on every rank."""
    draw = torch.Generator().manual_seed(1)
    successors = torch.randint(VOCABULARY, (VOCABULARY, SUCCESSORS), generator=draw)
    choices = torch.randint(SUCCESSORS, (TOKENS, STEPS, BATCH), generator=draw)
    tokens = [torch.randint(VOCABULARY, (STEPS, BATCH), generator=draw)]
    for choice in choices[1:]:
        tokens.append(successors[tokens[-1], choice])
    return [{"input_ids": ids, "labels": ids} for ids in torch.stack(tokens, dim=-1)]


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


def show_ranks(model: GPT2LMHeadModel, batch: Batch) -> None:
    """Prints what each of four ranks would hold and do."""
    plan = autoplan.plan(
        model, batch, cluster="cpu-gloo", gpus_per_node=4, global_batch=BATCH, precision="fp32",
        pins={"tp": 2},
    )  # fmt: skip
    autoplan.print_report(autoplan.dry_run(plan, model, batch))


def main() -> int:
    logging.set_verbosity_error()
    model = build_model()
    if "--dry-run" in sys.argv:
        show_ranks(model, draw_batches()[0])
        return 0
    alone = copy.deepcopy(model)
    batches = draw_batches()
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
