"""The report as one HTML file that needs nothing else: no script, no network, no other file."""

from autoplan.report.html.page import page

__all__ = ["page"]
