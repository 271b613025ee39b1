"""Who computed, who waited, and when answers arrived: a lane per client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.activity import Activity, activity
from fbompi.axes import label, scale
from fbompi.plots.figure import COLOURS, GREY, PAGE, PALE, RED, plain
from fbompi.runs import Run

MOST = 30  # clients that there is room for
FEWER = 10  # the same, of each of several runs
EACH = 12  # answers of a client that a lane has room for
BINS = 240  # of the whole run
LANE = 0.15  # inches
COMPUTING = COLOURS[0]


def missing(run: Run) -> str:
    """Why this cannot be drawn; empty, if it can."""
    if not len(run.arrivals):
        return "no answer has arrived"
    return "" if np.nanmax(run.arrivals["time_arrived"]) > 0 else "no time passed on its clock (delays.model)"


def window(a: Activity) -> tuple[float, float]:
    """A stretch of time in which single answers can be seen: the whole run if it is short, else where something went
    wrong first, or its middle."""
    if len(a.client) <= EACH * a.clients:
        return 0.0, a.end
    length = a.end * EACH * a.clients / len(a.client)
    troubles = [*a.left.values(), *a.adopted.values(), *a.arrived[a.rejected].tolist()]
    begin = min(troubles) - length / 3 if troubles else (a.end - length) / 2
    begin = float(np.clip(begin, 0.0, a.end - length))
    return begin, begin + length


def detail(axes: Any, run: Run, a: Activity, lanes: np.ndarray, span: tuple[float, float]) -> None:
    """Every task as a bar, with its computing, and every arrival as a tick."""
    factor, word = _lanes(axes, run, a, lanes, span)
    place = {client: lane for lane, client in enumerate(lanes.tolist())}
    mine = np.isin(a.client, lanes) & (a.arrived >= span[0]) & (a.sent <= span[1])
    at = np.array([place[c] for c in a.client[mine].tolist()])
    for client, lane in place.items():
        bars = [
            (b / factor, (e - b) / factor) for b, e in a.under_way(client).tolist() if e >= span[0] and b <= span[1]
        ]
        axes.broken_barh(bars, (lane - 0.36, 0.72), facecolors=PALE, linewidth=0)
        if a.compute.any():
            own = mine & (a.client == client) & (a.compute > 0)
            computing = np.stack([a.begun[own], a.compute[own]], axis=1) / factor
            axes.broken_barh(computing.tolist(), (lane - 0.36, 0.72), facecolors=COMPUTING, linewidth=0)
    good = ~a.rejected[mine]
    arrived = a.arrived[mine] / factor
    axes.vlines(arrived[good], at[good] - 0.36, at[good] + 0.36, color="black", linewidth=0.6)
    axes.plot(arrived[~good], at[~good], "x", color=RED, markersize=4, markeredgewidth=1.4, zorder=4)
    axes.set_xlabel(label("time", word))


def whole(axes: Any, run: Run, a: Activity, lanes: np.ndarray) -> None:
    """The part of the time in which clients had a task: the darker, the more."""
    span = (0.0, a.end or 1.0)
    factor, word = _lanes(axes, run, a, lanes, span)
    edges = np.linspace(*span, BINS + 1)
    shares = np.array([a.share(client, edges) for client in lanes.tolist()])
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("waiting to busy", ["#ffffff", PALE, COMPUTING])
    extent = (0, span[1] / factor, len(lanes) - 0.5, -0.5)
    image = axes.imshow(shares, cmap=shades, vmin=0, vmax=1, aspect="auto", extent=extent, interpolation="nearest")
    bad = a.rejected & np.isin(a.client, lanes)
    place = {client: lane for lane, client in enumerate(lanes.tolist())}
    at = [place[c] for c in a.client[bad].tolist()]
    for colour, width in (("white", 2.6), (RED, 1.3)):  # with a rim, on whatever shade
        axes.plot(a.arrived[bad] / factor, at, "x", color=colour, markersize=4 + width / 2, markeredgewidth=width)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.025, pad=0.01)
    bar.set_label("time with a task", fontsize=7)
    bar.set_ticks([0, 0.5, 1], labels=["0 %", "50 %", "100 %"])
    axes.set_xlabel(label("time", word))


def _lanes(axes: Any, run: Run, a: Activity, lanes: np.ndarray, span: tuple[float, float]) -> tuple[float, str]:
    """Lanes with their clients' numbers, what befell them, and the time's factor and unit."""
    factor, word = scale(run.unit("time"), a.end)
    slow = set(a.slow)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(span[0] / factor, span[1] / factor)
    axes.set_yticks(range(len(lanes)), [f"{c} slow" if c in slow else str(c) for c in lanes.tolist()], fontsize=6)
    for tick, client in zip(axes.get_yticklabels(), lanes.tolist()):
        tick.set_color(RED if client in slow or client in a.left else "black")
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    axes.set_ylabel("client")
    for lane, client in enumerate(lanes.tolist()):
        if client in a.left and a.left[client] <= span[1]:
            begin = max(a.left[client], span[0])
            axes.broken_barh([(begin / factor, (span[1] - begin) / factor)], (lane - 0.36, 0.72), facecolors="none",
                             edgecolor=GREY, hatch="//////", linewidth=0, zorder=3)  # fmt: skip
        if client in a.adopted and span[0] <= a.adopted[client] <= span[1]:
            axes.plot(a.adopted[client] / factor, lane, "D", color=COLOURS[2], markersize=4, zorder=4)
    return factor, word


def legend(axes: Any, a: Activity, detailed: bool = True) -> None:
    """What is in the lanes, above them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if detailed:
        handles = [Patch(facecolor=PALE, label="task under way")]
        handles += [Patch(facecolor=COMPUTING, label="computing")] if a.compute.any() else []
        handles += [Patch(facecolor="white", edgecolor=GREY, linewidth=0.5, label="waiting for a task"),
                    Line2D([], [], color="black", marker="|", linestyle="", markersize=7, label="answer")]  # fmt: skip
    if a.rejected.any():
        handles.append(Line2D([], [], color=RED, marker="x", linestyle="", markeredgewidth=1.4, label="rejected"))
    if a.left:
        handles.append(Patch(facecolor="none", edgecolor=GREY, hatch="//////", linewidth=0, label="left out"))
    if a.adopted:
        handles.append(Line2D([], [], color=COLOURS[2], marker="D", linestyle="", markersize=4, label="adopted"))
    if handles:
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(handles), borderaxespad=0.2,
                    handlelength=1.2, columnspacing=1.2)  # fmt: skip


def note(run: Run, a: Activity, lanes: np.ndarray, span: tuple[float, float]) -> str:
    """What part of the run is shown, where it is not all."""
    words = []
    if len(lanes) < a.clients:
        words.append(f"{len(lanes)} of {a.clients:,} clients")
    if span[1] - span[0] < 0.999 * a.end:
        words.append(f"{100 * (span[1] - span[0]) / a.end:.2g} % of the time, every answer")
    return ", ".join(words)


def figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str]) -> Any:
    """Of one or two runs the whole time and, where that is crowded, a stretch with every single answer; of more runs
    the whole time."""
    parts: list[tuple[Run, str, Activity, np.ndarray, tuple[float, float] | None]] = []
    for run, name in zip(runs, names):
        a = activity(run)
        lanes, crowded = a.shown(MOST if len(runs) < 3 else FEWER), window(a)
        if len(runs) > 2 or crowded[1] - crowded[0] < 0.999 * a.end:
            parts.append((run, name, a, lanes, None))
        if len(runs) < 3:
            parts.append((run, name, a, lanes, crowded))
    heights = [LANE * len(lanes) + 0.8 for _, _, _, lanes, _ in parts]
    made = figure_of(figsize=(PAGE, sum(heights)), layout="constrained")
    grid = made.subplots(len(parts), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, (run, name, a, lanes, span) in zip(grid, parts):
        if span is None:
            whole(axes, run, a, lanes)
            legend(axes, a, detailed=False)
            shown = ", ".join(filter(None, ["the whole run", note(run, a, lanes, (0.0, a.end))]))
            axes.set_title(plain(f"{name}: {shown}"), pad=17 if a.rejected.any() or a.left or a.adopted else 4)
        else:
            detail(axes, run, a, lanes, span)
            legend(axes, a)
            shown = note(run, a, lanes, span)
            axes.set_title(plain(f"{name}: {shown}" if shown else name), pad=17)
    return made
