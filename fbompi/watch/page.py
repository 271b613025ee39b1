"""A look as lines that fit a terminal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fbompi.summary import incident_lines
from fbompi.watch.look import Look

LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
COURSE = 40  # characters of a course at most


def page(look: Look, width: int, height: int, fancy: bool = True) -> list[str]:
    """Not more lines, and no longer ones, than fit; a terminal that has no room for all has the most telling."""
    lines, told = [*_head(look), *_courses(look, width, fancy), *_clients_lines(look)], _told(look.incidents, look)
    room = max(0, height - len(lines))
    last = min(len(told), max(room // 3, room - len(look.clients.state) - 1))
    lines += _table(look, room - last) + told[len(told) - last :]
    return [_fitted(line, width, fancy) for line in lines[:height]]


def block(look: Look, width: int, clients: int, fancy: bool = True) -> list[str]:
    """Plain lines that are not replaced later: every incident is told once, and of the clients only the worst."""
    lines = [*_head(look), *_courses(look, width, fancy), *_clients_lines(look), *_table(look, clients + 1)]
    return [_fitted(line, width, fancy) for line in (*lines, *_told(look.new, look))]


def _told(incidents: list[dict[str, Any]], look: Look) -> list[str]:
    return [f"  {line}" for line in incident_lines(incidents, look.unit)]


def _head(look: Look) -> list[str]:
    percent = f"{look.rounds / max(look.all_rounds, 1):.0%}"
    words = f"{look.algorithm} on {look.problem}: {look.status}, round {look.rounds} of {look.all_rounds}, {percent}"
    pace = f"{look.time:.4g} {look.unit}"
    if look.rate is not None and not look.over:
        pace += f", {look.rate:.3g} rounds/s"
    return [words, pace + (f", {duration(look.left)} left" if look.left is not None else "")]


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 5 h 12 min, 3 d 4 h."""
    whole = round(seconds)
    for size, big, small, part in ((86400, "d", "h", 3600), (3600, "h", "min", 60), (60, "min", "s", 1)):
        if whole >= size:
            return f"{whole // size} {big} {whole % size // part} {small}"
    return f"{whole} s"


def _courses(look: Look, width: int, fancy: bool) -> list[str]:
    names = [name for name, course in look.courses.items() if np.isfinite(course).any()]
    longest = max(map(len, names), default=0)
    room = min(COURSE, width - longest - 38)
    lines = []
    for name in names:
        known = look.courses[name][np.isfinite(look.courses[name])]
        line = f"  {name:<{longest}}  {known[-1]:<10.4g}"
        drawn = sparkline(known, room, fancy) if room >= 8 else ""
        lines.append(f"{line}  {drawn:<{max(room, 0)}}  from {known[0]:.4g}")
    return lines


def sparkline(values: np.ndarray, most: int, fancy: bool = True) -> str:
    """The course of finite values in at most so many characters: means of stretches, from the lowest to the highest."""
    levels = LEVELS if fancy else ASCII_LEVELS
    parts = np.array_split(values, min(most, len(values)))
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.nan_to_num(np.array([part.mean() for part in parts]))
        low, span = means.min(), means.max() - means.min()
        if not span or not math.isfinite(span):
            return levels[0] * len(means)
        steps = (means - low) / span * (len(levels) - 1)
    return "".join(levels[round(float(step))] for step in steps)


def _clients_lines(look: Look) -> list[str]:
    """All clients together."""
    c = look.clients
    states = [f"{int((c.state == name).sum())} {name}" for name in sorted(set(c.state.tolist()))]
    words = f"{len(c.state)} clients: " + ("all alive" if (c.state == "alive").all() else ", ".join(states))
    words += f"; {c.tasks.min()} to {c.tasks.max()} tasks done by each"
    words += f"; {c.rejected.sum()} answers rejected" if c.rejected.any() else ""
    ages, silence = c.mean_age[np.isfinite(c.mean_age)], look.time - c.heard[np.isfinite(c.heard)]
    if not len(silence):
        return [words]
    return [words, f"answers {ages.mean():.1f} rounds old, the oldest {c.oldest}; silent for {np.median(silence):.3g}, "
                   f"at most {silence.max():.3g} {look.unit}"]  # fmt: skip


def _table(look: Look, room: int) -> list[str]:
    """A line per client, of many clients the worst; nothing, where there is no room for one."""
    c = look.clients
    if room < 2:
        return []
    chosen = c.worst(look.time, room - 1)
    first = "client" if len(chosen) == len(c.state) else "worst"
    rows = [[first, "rank", f"heard, {look.unit} ago", "age", "mean", "tasks", "rejected", "state"]]
    for i in chosen:
        heard = "not yet" if np.isnan(c.heard[i]) else f"{max(0.0, look.time - c.heard[i]):.3g}"
        age, mean = ("–" if np.isnan(a) else f"{a:{form}}" for a, form in ((c.age[i], ".0f"), (c.mean_age[i], ".1f")))
        rows.append([str(i), str(c.rank[i]), heard, age, mean, str(c.tasks[i]), str(c.rejected[i]), str(c.state[i])])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]


def _fitted(line: str, width: int, fancy: bool) -> str:
    """What a file says must not move the cursor."""
    clean = "".join(c if c.isprintable() else "?" for c in line).rstrip()
    if not fancy:
        clean = clean.replace("–", "-").encode("ascii", "replace").decode()
    return clean if len(clean) <= width else clean[: max(width - 1, 0)] + ("…" if fancy else ">")
