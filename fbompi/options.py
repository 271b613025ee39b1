"""Options that several commands have."""

from __future__ import annotations

import click

KEYS = click.option("-o", "--option", "options", multiple=True, metavar="SECTION.KEY=VALUE", help="Set a key.")
JSON = click.option("--json", "as_json", is_flag=True, help="Figures for machines instead of text.")
QUIET = click.option("--quiet", is_flag=True, help="No progress.")
