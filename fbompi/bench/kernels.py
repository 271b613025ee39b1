"""All kernels, each against what one would write without it and against what this machine can do.

Every number of threads is a process of its own, bound to as many cores: libraries read such settings when they start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from fbompi.bench.timing import Case
from fbompi.errors import UserError

OURS = "fbompi"
# Threads with nothing to do go to sleep: spinning, as by default, they would take the cores of the next contestant.
PATIENCE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}
AUTOGRAD = ("double backward", "jvp(grad)")  # ends of names of contestants that differentiate, and do not do it by hand


def figures(threads: list[int], repeats: int) -> list[Case]:
    """The cases for each number of threads."""
    cores = sorted(os.sched_getaffinity(0))
    if max(threads) > len(cores):
        raise UserError(f"fbompi bench kernels: {max(threads)} threads asked for, and there are {len(cores)} cores")
    cases = []
    for count in threads:
        limits = {name: str(count) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        limits |= PATIENCE
        child = subprocess.run(
            [sys.executable, "-m", "fbompi.bench.kernels", str(count), str(repeats)],
            env={**os.environ, **limits}, stdout=subprocess.PIPE, text=True, check=False,
            preexec_fn=lambda count=count: os.sched_setaffinity(0, cores[-count:]),  # type: ignore[misc]
        )  # fmt: skip
        if child.returncode:
            raise UserError(f"fbompi bench kernels: the measurement with {count} threads failed (see above)")
        cases += [Case(**entry) for entry in json.loads(child.stdout)]
    return cases


def measure(threads: int, repeats: int) -> list[Case]:
    """All cases, here and now."""
    from fbompi.bench import jacobian, network, regression, sweeps

    found = regression.cases(repeats, threads) + network.cases(max(repeats // 2, 2), threads)
    found += jacobian.cases(max(repeats // 3, 2), threads)
    return found + (sweeps.cases(max(repeats // 3, 2)) if threads == 1 else [])  # a sweep is one thread's work


def page(cases: list[Case]) -> str:
    """The figures for people."""
    lines = []
    for case in cases:
        lines += [f"{case.kernel}, {case.shape}, {case.threads} thread{'s' * (case.threads > 1)}"]
        for name in case.seconds:
            middle, low, high = case.ratio(name, OURS)
            ratio = "" if name == OURS else f"{middle:8.2f}   ({low:.2f} to {high:.2f})"
            lines += [f"  {name:<26}{1e3 * case.best(name):>10.2f} ms {ratio}"]
        if case.limit:
            what = max(case.limit, key=case.limit.__getitem__)
            share = case.limit[what] / case.best(OURS)
            lines += [f"  {'this machine at best':<26}{1e3 * case.limit[what]:>10.2f} ms {share:8.2f}   ({what})"]
    lines += ["", "times are the best; ratios (others' time / ours) the median over the repetitions, quartiles beside"]
    return "\n".join(lines)


def as_json(cases: list[Case]) -> list[dict[str, Any]]:
    return [asdict(case) for case in cases]


if __name__ == "__main__":
    print(json.dumps(as_json(measure(int(sys.argv[1]), int(sys.argv[2])))))
