"""Draws the pictures in the README: ``report.svg``, the terminal, and ``report.png``, the page.

    python docs/picture.py

The page is photographed by Chromium, if there is one. Rich's own template of the terminal loads a
font over the network; this one uses the reader's monospace font.
"""

import io
import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

import autoplan
from autoplan.report.html import page
from autoplan.report.text import print_report

COLUMNS = 100
WIDTH, HEIGHT = 1180, 1790
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
    draw_terminal(Path(__file__).with_name("report.svg"))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium: report.png stays as it is")
    else:
        photograph_page(browser, Path(__file__).with_name("report.png"))


def draw_terminal(target: Path) -> None:
    """GPT-2 on one node."""
    plan = autoplan.plan("gpt2", cluster="dgx-h100", global_batch=64)
    console = Console(
        file=io.StringIO(), width=COLUMNS, record=True, highlight=False, force_terminal=True,
        color_system="truecolor",
    )  # fmt: skip
    print_report(plan, console)
    target.write_text(console.export_svg(code_format=TEMPLATE, unique_id="report"))


def photograph_page(browser: str, target: Path) -> None:
    """Llama 3 8B on two nodes, in a pipeline."""
    plan = autoplan.plan(
        "llama3-8b", cluster="dgx-h100", nodes=2, global_batch=32, seq_len=8192,
        pins={"pp": 4, "schedule": "zero_bubble"},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "report.html"
        source.write_text(page(plan))
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--screenshot={target}", f"--window-size={WIDTH},{HEIGHT}", source.as_uri()],
            check=True, timeout=120,
        )  # fmt: skip


if __name__ == "__main__":
    main()
