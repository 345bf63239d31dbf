"""``autoplan profile``: measures this machine and keeps its profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli.files import check_profile

INTERRUPTED = 130


def profile(
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="A .toml file to save.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="About 50 s, with fewer shapes; else under 10 min.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Profile whose values stay where nothing is measured; default: "
            "the one of this kind of device.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Measure this machine, alone or under torchrun.

    Its profile is kept for plans made here.
    """
    check_profile(output)
    from datetime import UTC, datetime

    from autoplan import launch
    from autoplan.cli.progress import ProgressDisplay, logs_held
    from autoplan.profiler.cache import keep
    from autoplan.profiler.run import profile_machine
    from autoplan.report.profile import print_profile
    from hardware_profiles.write import save

    launch.start_process_group()
    with logs_held():
        found = profile_machine(
            base or launch.shipped_cluster(),
            quick=quick,
            show=ProgressDisplay,
            today=datetime.now(UTC).date(),
        )
    if found is None:
        return
    saved = []
    if output is not None:
        save(found.facts, output)
        saved.append(output)
    if not found.interrupted:
        saved.append(keep(found.facts, found.machine))
    print_profile(found)
    for path in saved:
        print(f"profile saved: {path}", file=sys.stderr)
    if found.interrupted:
        if not saved:
            print("interrupted: nothing saved; -o FILE keeps what was measured", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
