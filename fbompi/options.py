"""Options that several commands have."""

from __future__ import annotations

import click

from fbompi.completion import keys

KEYS = click.option(
    "-o", "--option", "options", multiple=True, metavar="SECTION.KEY=VALUE", help="Set a key.", shell_complete=keys
)
JSON = click.option("--json", "as_json", is_flag=True, help="Figures for machines instead of text.")
QUIET = click.option("--quiet", is_flag=True, help="No progress.")
