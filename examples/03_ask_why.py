"""Plan a large model for a cluster that you do not have, and ask why not otherwise.

    python examples/03_ask_why.py

The links between these boxes are slow, so that a pipeline wins. ``why_not`` is answered by
the best plan there is under its pins, in milliseconds and in GiB by category.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import autoplan


def main() -> None:
    plan = autoplan.plan("opt-6.7b", cluster="rtx4090-box", nodes=2, global_batch=64)
    autoplan.print_report(plan)
    print()
    autoplan.print_report(autoplan.explain(plan, why_not={"pp": 1}))  # no pipeline

    # Decisions of your own are pins; the rest is chosen around them, within less memory here.
    pinned = autoplan.plan(
        "opt-6.7b", cluster="rtx4090-box", nodes=2, global_batch=64,
        pins={"schedule": "1f1b"}, memory_limit="20GiB",
    )  # fmt: skip
    slower_s = pinned.estimate.step_s - plan.estimate.step_s
    print(f"\n1F1B within 20 GiB takes {slower_s:+.3g} s a step")

    # A plan is a JSON file: keep it beside the code, and run it there with plan="plan.json".
    with TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        autoplan.save_plan(plan, path)
        assert autoplan.load_plan(path) == plan


if __name__ == "__main__":
    main()
