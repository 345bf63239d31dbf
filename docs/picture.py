"""Draws ``docs/report.svg``, the picture in the README.

    python docs/picture.py

Rich's own template loads a font over the network; this one uses the reader's monospace font.
"""

import io
from pathlib import Path

from rich.console import Console

import autoplan
from autoplan.report.text import print_report

COLUMNS = 100
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="8" fill="#1f2430"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    plan = autoplan.plan("gpt2", cluster="dgx-h100", global_batch=64)
    console = Console(
        file=io.StringIO(), width=COLUMNS, record=True, highlight=False, force_terminal=True,
        color_system="truecolor",
    )  # fmt: skip
    print_report(plan, console)
    picture = console.export_svg(code_format=TEMPLATE, unique_id="report")
    Path(__file__).with_name("report.svg").write_text(picture)


if __name__ == "__main__":
    main()
