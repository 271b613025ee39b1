"""Table I of the paper of FISM: iterations and time until the stopping rule holds, IR-IG beside FISM.

All clients are in this process, one after the other, and nothing is recorded. `parallel` is the paper's account: the
slowest client of every round, summed; a client sweeps and, for the stopping rule, evaluates its part of F. `server` is
what the server and the link do besides, `wall` all of it. Contestants take turns; every run is repeated, and of each
task the shortest time counts: what else the machine does is not the method's doing.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fbompi.config import resolve
from fbompi.links.link import EVENT
from fbompi.links.virtual import VirtualLink
from fbompi.messages import Array
from fbompi.problems.location import BOX, Location
from fbompi.run import Driver, build, link_arguments

STOP, MOST = 1e-5, 50_000  # the paper's rule; iterations after which it is given up
SCHEDULE = {"step": 1.0, "step_power": 0.8, "weight": 1.0, "weight_power": 0.1}
TIMES = 3  # that a run is repeated
NUMPY_SECONDS = 0.5  # of every draw, for which the plain loop is timed: it would take minutes

# The seconds that Table I prints: IR-IG, and FISM with 1, 2, 4 and 8 clients.
PRINTED = {
    (10, 500): (16.92, 15.96, 5.95, 2.34, 1.39), (10, 1000): (42.88, 40.51, 13.47, 5.31, 2.76),
    (10, 5000): (374.42, 351.27, 120.96, 42.67, 18.12), (10, 10000): (849.49, 800.44, 295.64, 104.30, 38.62),
    (50, 500): (15.78, 14.77, 6.13, 3.37, 2.77), (50, 1000): (35.47, 33.20, 12.46, 5.06, 2.96),
    (50, 5000): (318.56, 298.60, 106.08, 36.96, 15.26), (50, 10000): (808.79, 760.02, 277.83, 98.70, 36.61),
    (100, 500): (17.33, 16.17, 8.31, 4.74, 3.91), (100, 1000): (34.73, 32.44, 12.90, 5.95, 4.10),
    (100, 5000): (292.83, 276.16, 97.92, 35.52, 14.08), (100, 10000): (768.78, 724.63, 256.56, 89.95, 35.93),
}  # fmt: skip


@dataclass
class Row:
    """One method on one problem, averaged over draws of it."""

    method: str
    clients: int
    iterations: float
    parallel: float  # seconds: the slowest client of every round
    server: float  # seconds
    wall: float  # seconds in this one process
    printed: float | None  # seconds of Table I, on the authors' machine


def figures(dim: int, balls: int, clients: list[int], repeats: int) -> dict[str, Any]:
    """The table, each row averaged over `repeats` draws of balls, anchor and start."""
    printed = dict(zip([("irig", 1), *(("fism", S) for S in (1, 2, 4, 8))], PRINTED.get((dim, balls), ())))
    contestants = [("irig", 1), *(("fism", count) for count in clients)]
    measure("fism", 1, dim, min(balls, 100), seed=0)  # compiles, or reads what was compiled
    runs: dict[tuple[str, int], list] = {contestant: [] for contestant in contestants}
    loop, timed = math.inf, 0
    for seed in range(repeats):
        for method, count in contestants:
            runs[method, count].append(measure(method, count, dim, balls, seed))
        passes, seconds = plain(dim, balls, seed, int(runs["irig", 1][-1][0]))
        loop, timed = min(loop, seconds / passes), timed + passes
    rows = []
    for method, count in contestants:
        iterations, parallel, server, wall = map(float, np.mean(runs[method, count], axis=0))
        rows.append(Row(method, count, iterations, parallel, server, wall, printed.get((method, count))))
    numpy = {"iterations": rows[0].iterations, "timed": timed, "seconds": loop * rows[0].iterations}
    return {
        "dim": dim, "balls": balls, "repeats": repeats, "stop": STOP, "rows": [asdict(row) for row in rows],
        "numpy": numpy,
        "parallel_ratios": {str(r.clients): rows[0].parallel / r.parallel for r in rows[1:]},
        "numpy_ratios": {str(r.clients): numpy["seconds"] / r.wall for r in rows[1:]},
    }  # fmt: skip


def measure(method: str, clients: int, dim: int, balls: int, seed: int) -> tuple[int, float, float, float]:
    """Of a run until its stopping rule holds: iterations, and the seconds of `Row`."""
    shortest, server, wall = np.inf, math.inf, math.inf
    for _ in range(TIMES):
        driver = federation(method, clients, dim, balls, seed)
        begin = time.perf_counter()
        while not driver.over:
            driver.method.round(driver.state, driver.link)
        took = time.perf_counter() - begin
        seconds = np.array(driver.link.events, EVENT)["seconds"].reshape(driver.state.round, clients)
        shortest = np.minimum(shortest, seconds)
        server, wall = min(server, took - seconds.sum()), min(wall, took)
    return driver.state.round, float(np.max(shortest, axis=1).sum()), server, wall


def federation(method: str, clients: int, dim: int, balls: int, seed: int) -> Driver:
    """A run in this process, ready for its first round."""
    parts = build(
        resolve(
            {
                "run": {"algorithm": method, "problem": "location", "rounds": MOST, "seed": seed},
                "problem": {"dim_x": dim, "balls": balls, "seed": seed}, "clients": {"count": clients},
                "delays": {"model": "none"},
                "algorithm": {**SCHEDULE, "stop": STOP},
            }
        )
    )  # fmt: skip
    link = VirtualLink([parts.client(i) for i in range(clients)], *link_arguments(parts))
    return Driver(parts, link)


def plain(dim: int, balls: int, seed: int, iterations: int) -> tuple[int, float]:
    """IR-IG as one writes it down in NumPy: so many iterations, or those of a moment; how many, and their seconds."""
    problem = Location(dim_x=dim, balls=balls, seed=seed)
    shard, x = problem.shard(0, 1), problem.start(np.random.default_rng(seed))
    begin, k = time.perf_counter(), 0
    while k < iterations and time.perf_counter() - begin < NUMPY_SECONDS:
        k += 1
        x, before = plain_pass(problem, shard.centres, shard.radii, x, k), x
        stopping(problem, shard.centres, shard.radii, x, before)
    return k, time.perf_counter() - begin


def plain_pass(problem: Location, centres: Array, radii: Array, x: Array, k: int) -> Array:
    gamma, weight = 1 / k**0.8, 1 / k**0.1
    for centre, radius in zip(centres, radii):
        distance = np.linalg.norm(x - centre)
        subgradient = (x - centre) / distance if distance > radius else np.zeros_like(x)
        x = np.clip(x - gamma * subgradient - gamma * weight / len(radii) * (x - problem.anchor), *BOX)
    return x


def stopping(problem: Location, centres: Array, radii: Array, x: Array, before: Array) -> float:
    """What the stopping rule compares, by the whole array at once."""
    H, F = [], []
    for point in (before, x):
        H.append(0.5 * np.sum((point - problem.anchor) ** 2))
        F.append(np.maximum(np.linalg.norm(point - centres, axis=1) - radii, 0).sum())
    moved = np.linalg.norm(x - before) / (np.linalg.norm(before) + 1)
    return float(max(moved, abs(H[1] - H[0]) / (H[0] + 1), abs(F[1] - F[0]) / (F[0] + 1)))


def page(figures: dict[str, Any]) -> str:
    """The table for people."""
    g = figures
    lines = [
        f"n = {g['dim']}, m = {g['balls']:,} balls, until nothing changes by more than {g['stop']:g}; means of "
        f"{g['repeats']} draws",
        "",
        f"{'':<13}{'iterations':>11}{'parallel':>11}{'IR-IG/it':>10}{'server':>10}{'wall':>10}{'NumPy/wall':>12}"
        f"{'printed':>12}{'IR-IG/it':>10}",
    ]
    base = g["rows"][0]
    for row in g["rows"]:
        name = "IR-IG" if row["method"] == "irig" else f"FISM S = {row['clients']}"
        line = (
            f"{name:<13}{row['iterations']:>11,.0f}{row['parallel']:>9.3f} s{base['parallel'] / row['parallel']:>10.1f}"
            f"{row['server']:>8.3f} s{row['wall']:>8.3f} s{g['numpy']['seconds'] / row['wall']:>12,.0f}"
        )
        if row["printed"] is not None:
            line += f"{row['printed']:>10.2f} s{base['printed'] / row['printed']:>10.1f}"
        lines.append(line)
    numpy = g["numpy"]
    lines += [
        f"{'NumPy IR-IG':<13}{numpy['iterations']:>11,.0f}{'':>31}{numpy['seconds']:>8.1f} s"
        + (
            f"   {numpy['timed']} iterations timed, scaled"
            if numpy["timed"] < g["repeats"] * base["iterations"]
            else ""
        ),
        "",
        "parallel: the slowest client of every round, summed, as the paper counts; server: what is done besides;",
        "wall: all clients and the server in this process; printed: Table I, on the authors' machine.",
    ]
    return "\n".join(lines)
