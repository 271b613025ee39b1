"""How figures look, and how they get into a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fbompi.errors import UserError

# Okabe and Ito's palette, which colour-blind people can tell apart; its yellow is too light for lines on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY, PALE, RED = "#6b6b6b", "#c9d6e2", "#D55E00"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
ENDINGS = (".png", ".svg", ".pdf")
COLUMN, PAGE = 3.5, 7.2  # inches: the width of a column, and of a page, of most journals

STYLE: Any = {
    "font.family": "sans-serif", "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "figure.titlesize": 9, "lines.linewidth": 1.3, "lines.markersize": 3,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlelocation": "left",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.5, "legend.frameon": False,
    "savefig.dpi": 300, "figure.dpi": 150, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fbompi",
    "axes.formatter.use_mathtext": True, "axes.formatter.limits": (-3, 5),
}  # fmt: skip


def ending(path: Path) -> str:
    """The kind of file that a name asks for, or one clear line."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: expected a name that ends with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    return path.suffix.lower()[1:]


@contextmanager
def drawing(what: str) -> Iterator[type]:
    """Matplotlib's Figure, in our style; without matplotlib, one clear line."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"{what}: needs matplotlib: pip install 'fbompi[plot]'") from None
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # file names may be in any script
        yield Figure


def save(figure: Any, path: Path) -> None:
    """Write a figure, whole or not at all; the same figure gives the same bytes."""
    kind = ending(path)
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.partial")
    try:
        figure.savefig(temporary, format=kind, metadata=metadata)
        os.replace(temporary, path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {e.strerror or e}") from None


def plain(text: str) -> str:
    """A text as matplotlib is to show it: no formulas, nothing that cannot be printed."""
    text = "".join(c if c.isprintable() else "�" for c in text.encode("utf-8", "replace").decode())
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # legends leave out what begins with it


def line(index: int) -> dict[str, Any]:
    """Colour and dashes of the index-th line: neighbours differ in both, and can be told apart in grey print."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def names(paths: Sequence[Path]) -> list[str]:
    """What to call files: by their names, with as much of the path as tells them apart."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    parts = [path.resolve().with_suffix("").parts for path in paths]
    same = 0
    while all(len(p) > same + 1 and p[same] == parts[0][same] for p in parts):
        same += 1
    named = ["/".join(p[same:]) for p in parts]
    return named if len(set(named)) == len(named) else [f"{n} ({i})" for i, n in enumerate(named, 1)]
