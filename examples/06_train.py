"""A whole training script: data loader, learning-rate schedule, evaluation, checkpoints, resume.

On one process, on one node, and on each of two nodes:

    python examples/06_train.py
    torchrun --standalone --nproc-per-node 4 examples/06_train.py --checkpoint run
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        examples/06_train.py --checkpoint /shared/run

Started again with the same ``--checkpoint`` it goes on from there, on any number of ranks and by
any plan (``--pin tp=2``): every step has the loss that it would have had, but for rounding. All
nodes must see the folder of the checkpoint. For a model of your own replace ``Decoder``, and
``Windows`` by its data.
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import autoplan

VOCABULARY, LENGTH, WIDTH, HEADS = 256, 64, 64, 4
GLOBAL_BATCH = 32  # samples of a step, over all ranks

Batch = dict[str, Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Predicts each next byte; returns its loss."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Windows(Dataset):
    """Overlapping pieces of a text."""

    def __init__(self, text: bytes) -> None:
        self.pieces = torch.tensor(list(text)).unfold(0, LENGTH + 1, 8)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Batch:
        return {"tokens": self.pieces[index, :-1], "targets": self.pieces[index, 1:]}


def share(data: Dataset, pm: autoplan.ParallelModule, *, shuffle: bool) -> DistributedSampler:
    """This rank's samples: ranks that hold parts of one replica of the model get the same."""
    return DistributedSampler(
        data, num_replicas=pm.data_world, rank=pm.data_rank, shuffle=shuffle, drop_last=True
    )


def batches(data: Dataset, pm: autoplan.ParallelModule, sampler: DistributedSampler) -> DataLoader:
    return DataLoader(data, GLOBAL_BATCH // pm.data_world, sampler=sampler, drop_last=True)


@torch.no_grad()
def evaluate(pm: autoplan.ParallelModule, loader: DataLoader) -> float:
    """Mean loss over the held-out text."""
    pm.eval()
    losses = [pm(**batch).item() for batch in loader]
    pm.train()
    return sum(losses) / len(losses)


def resumed(
    folder: Path | None, pm: autoplan.ParallelModule, optimizer: Optimizer, schedule: LRScheduler
) -> int:
    """The number of steps that are done, by the checkpoint in the folder if it holds one."""
    if folder is None or not (folder / "index.json").exists():  # what a checkpoint has last
        return 0
    extra = pm.load(folder, optimizer=optimizer)
    schedule.load_state_dict(extra["schedule"])
    return extra["step"]


def train(options: argparse.Namespace) -> list[float]:
    """The losses of the steps that this run made."""
    torch.manual_seed(0)
    text = options.text.read_bytes()
    cut = len(text) * 9 // 10
    train_data, held_out = Windows(text[:cut]), Windows(text[cut:])
    example = {name: value[None] for name, value in train_data[0].items()}
    pm = autoplan.compile(
        Decoder(), example, global_batch=GLOBAL_BATCH, precision="fp32",
        pins=dict(pin.split("=") for pin in options.pin),
    )  # fmt: skip
    sampler = share(train_data, pm, shuffle=True)
    loader = batches(train_data, pm, sampler)
    held_out_loader = batches(held_out, pm, share(held_out, pm, shuffle=False))
    optimizer = AdamW(pm.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, T_max=options.steps)

    step, losses = resumed(options.checkpoint, pm, optimizer, schedule), []
    mesh = pm.plan.mesh
    say(f"pp {mesh.pp} x dp {mesh.dp} x tp {mesh.tp}, ZeRO {pm.plan.zero}, from step {step}")
    while step < options.steps:
        epoch, batches_done = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for batch in islice(loader, batches_done, None):
            loss = pm.train_step(batch)
            pm.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step, losses = step + 1, [*losses, loss.item()]
            if step % options.save_every == 0:
                held_out_loss = evaluate(pm, held_out_loader)  # all ranks take part, and in saving
                say(f"step {step}: loss {loss:.4f}, held out {held_out_loss:.4f}")
                if options.checkpoint:
                    extra = {"step": step, "schedule": schedule.state_dict()}
                    pm.save(options.checkpoint, optimizer=optimizer, extra=extra)
            if step in (options.steps, options.stop_at):
                return losses
    return losses


def say(text: str) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(text, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, default=Path(__file__), help="what to learn from")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint", type=Path, help="folder to save to, and to resume from")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--stop-at", type=int, help="end here, as when the time of a job is up")
    parser.add_argument("--pin", action="append", default=[], help="of the plan: tp=2")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(parse())
    if dist.is_initialized():
        dist.destroy_process_group()
