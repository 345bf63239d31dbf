"""A quick profile of this machine, for benchmarks that are given none."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from autoplan.profiler.run import profile_machine
from autoplan.progress import silent
from hardware_profiles.write import save


def quick_profile(base: str, path: Path) -> str:
    """Measures this machine, in this process alone, and writes its profile; the path's name.

    Args:
        base: the profile whose values stay where nothing is measured.
    """
    found = profile_machine(
        base, quick=True, show=lambda: nullcontext(silent), today=datetime.now(UTC).date()
    )
    assert found is not None, "rank 0 has a profile"
    save(found.facts, path)
    return str(path)
