"""How many nodes does a training need, and what becomes of its speed on more of them?

    python examples/05_how_many_nodes.py

Every answer is plans: their files can be read, compared and run.
"""

import autoplan

MODEL = "gpt3-1.3b"


def main() -> None:
    sizing = autoplan.size(MODEL, tokens="100B", days=4, clusters=["p4d", "p5"], max_nodes=8)
    autoplan.print_report(sizing)
    smallest = sizing.smallest
    if smallest is None:
        raise SystemExit("no cluster is enough: allow more days or more nodes")

    job = smallest.plan.job
    sweep = autoplan.sweep(
        MODEL, cluster=job.cluster, nodes=[1, 2, 4], global_batch=[job.global_batch]
    )
    print()
    autoplan.print_report(sweep)
    for point in sweep.points:
        if point.plan is not None:
            share = point.plan.estimate.peak_memory_bytes / point.plan.estimate.memory_limit_bytes
            print(f"{point.job.nodes} nodes: {share:.0%} of the memory that may be used")


if __name__ == "__main__":
    main()
