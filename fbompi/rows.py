"""Rows of numbers from a user's CSV file, or one clear line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fbompi.errors import UserError


def read_rows(path: str, key: str, of: str, number: Callable[[str], Any]) -> Iterator[tuple[int, list[Any]]]:
    """The numbers of each line and its number in the file; empty lines and those that begin with # are left out.

    `key` is the key of the configuration that names the file, `of` says what the numbers are.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise UserError(f'{key} = "{path}": cannot be read: {e}') from None
    for place, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            yield place, [number(word) for word in line.split(",")]
        except ValueError:
            raise UserError(f"{path}, line {place}: expected {of} separated by commas, found {line!r}") from None
