"""The commands: ``plan``, ``report``, ``doctor``, ``explain``, ``verify`` and more, and lists.

Each reads its options, calls one function of the library and prints. Modules that take long to
import are imported by the command that needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import typer

from autoplan.cli.calibrate import calibrate
from autoplan.cli.compare import compare
from autoplan.cli.completion import PROGRAM, completion
from autoplan.cli.doctor import doctor
from autoplan.cli.explain import explain
from autoplan.cli.export import export
from autoplan.cli.plan import plan
from autoplan.cli.profile import profile
from autoplan.cli.report import report
from autoplan.cli.size import size
from autoplan.cli.sweep import sweep
from autoplan.cli.validate import validate
from autoplan.cli.verify import verify

app = typer.Typer(
    name=PROGRAM,
    help="Plans, explains and runs the parallel training of PyTorch models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.command()(plan)
app.command()(report)
app.command()(compare)
app.command()(size)
app.command()(sweep)
app.command()(doctor)
app.command()(explain)
app.command()(export)
app.command()(profile)
app.command()(calibrate)
app.command()(verify)
app.command()(validate)
app.command()(completion)


@app.command()
def models() -> None:
    """List the models that can be planned by name."""
    from autoplan import zoo

    for name in zoo.names():
        print(name)


@app.command()
def clusters() -> None:
    """List the clusters that can be planned for by name."""
    from hardware_profiles.load import load, names

    width = max(map(len, names()))
    for name in names():
        print(f"{name:{width}}  {load(name).description}")
