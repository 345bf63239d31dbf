"""Choices that the scripts of published runs state and their tables of results leave out.

Megatron-LM's ``examples/sc21/run_table_1.sh`` gives the microbatch and the layers of a model chunk
of every row of its table 1; the configs of the flash-attention repository
(``training/configs/experiment/pile``) the microbatch on devices with 80 GB.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.rows import MeasuredRow


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRun:
    """What a script states; ``chunk_layers`` None: no interleaving."""

    microbatch: int
    chunk_layers: int | None
    script: str


_SC21 = "Megatron-LM's examples/sc21/run_table_1.sh"
_PILE = "the flash-attention repository's pile configs"
# (layers, hidden, tp, pp): microbatch, layers of a chunk.
_MEGATRON_2021 = {
    (24, 2304, 1, 1): (16, None),
    (30, 3072, 2, 1): (16, None),
    (36, 4096, 4, 1): (16, None),
    (40, 6144, 8, 1): (8, None),
    (48, 8192, 8, 2): (4, None),
    (60, 10240, 8, 4): (2, 5),
    (80, 12288, 8, 8): (2, 5),
    (96, 16384, 8, 16): (1, 3),
    (105, 20480, 8, 35): (1, 1),
    (128, 25600, 8, 64): (1, None),
}
# (layers, hidden): microbatch, no chunks.
_FLASH_ATTENTION = {
    (12, 768): (32, None),
    (24, 1024): (16, None),
    (24, 1536): (16, None),
    (24, 2048): (8, None),
    (32, 2560): (4, None),
}


def published_run(row: MeasuredRow, framework: str) -> PublishedRun | None:
    """What the script of a row's run states, where there is one."""
    run: tuple[int, int | None] | None = None
    script = _SC21
    if row.layers is not None and row.hidden is not None:
        if framework == "Megatron-LM 2021":
            run = _MEGATRON_2021.get((row.layers, row.hidden, row.tp or 1, row.pp or 1))
        elif framework == "flash-attention repository":
            run = _FLASH_ATTENTION.get((row.layers, row.hidden))
            script = _PILE
    if run is None:
        return None
    return PublishedRun(microbatch=run[0], chunk_layers=run[1], script=script)
