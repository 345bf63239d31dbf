"""Why an export with folded blocks has to be done again; users never see these."""

from __future__ import annotations


class CannotFoldError(Exception):
    """A group turned out to be unsafe: export again and trace its blocks in full."""

    def __init__(self, group: str, reason: str):
        super().__init__(f"{group}: {reason}")
        self.group = group


class WithheldError(CannotFoldError):
    """The forward needs parameters that were withheld: export again with those of the group."""

    def __init__(self, group: str):
        super().__init__(group, "parameters are needed that were withheld")
