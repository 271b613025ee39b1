"""The kernels compiled for older kinds of CPU than this one: right answers, from code that no other kind loads."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from conftest import ROOT
from test_masked import Submodel
from test_regression import F32, F64, U8, Case, Plain, assert_close
from test_sweeps import TOLERANCE, location_slope, logistic_slope, sweep

from fbompi import kernels
from fbompi.kernels.cpu import masked, regression, sweeps, tiles
from fbompi.kernels.sweeps import Fresh, location_sweep, logistic_sweep

HERE = llvm.get_host_cpu_features().flatten().split(",") if platform.machine() == "x86_64" else []
AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
KINDS: dict[str, dict[str, str]] = {
    "this": {},
    "with AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2},
    "with neither AVX nor FMA": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
}
VECTOR_BYTES = {"this": 64 if "+avx512f" in HERE else 32, "with AVX2": 32, "with neither AVX nor FMA": 16}
REGISTERS = {64: "zmm", 32: "ymm", 16: "xmm"}

pytestmark = pytest.mark.skipif(
    not set(AVX2.split(",")) <= set(HERE), reason="this is not an x86-64 CPU with AVX2: it runs no other kind's code"
)


# In a process that compiles for one kind


def run_sweeps() -> dict[str, np.ndarray]:
    """Sweeps over rows of one, few and many elements, each compared with its steps in NumPy."""
    results = {}
    for n in (1, 13, 101):
        rng = np.random.default_rng(n)
        X, t = rng.standard_normal((30, n)), rng.choice([-1, 1], 30)
        centres, radii, x = rng.uniform(-2, 2, (30, n)), rng.uniform(0, 2 * np.sqrt(n), 30), rng.standard_normal(n)
        bytes_ = rng.integers(0, 256, (30, n), np.uint8)
        outer = {"shift": 0.01 * rng.standard_normal(n), "fresh": Fresh(0.02, l1=1.0, l2=0.5)}
        box, order = (-1.5, 1.5), range(30)
        for name, shift in outer.items():
            for real in (np.float64, np.float32):
                start = x.astype(real)
                found = logistic_sweep(X.astype(real), t, start, 0.3, shift, box=box)
                expected = sweep(logistic_slope, X.astype(real), t, start, 0.3, shift, order, box)
                np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[real])
                results[f"logistic {name} {n} {real.__name__}"] = found
                found = location_sweep(centres.astype(real), radii, start, 0.3, shift, box=box)
                expected = sweep(location_slope, centres.astype(real), radii, start, 0.3, shift, order, box)
                np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[real])
                results[f"location {name} {n} {real.__name__}"] = found
            found = logistic_sweep(bytes_, t, x, 0.3, shift, None, box, 1 / 64, -1.7)
            expected = sweep(logistic_slope, bytes_ / 64 - 1.7, t, x, 0.3, shift, order, box)
            np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[np.float64])
            results[f"logistic {name} {n} bytes"] = found
    return results


def run_regression() -> dict[str, np.ndarray]:
    """Gradients and products, of models and of a submodel, compared with NumPy in float64."""
    results = {}
    for pair in ((F64, F64), (F32, F32), (U8, F64)):
        near = 1e-12 if pair[1] == F64 else 1e-5
        for rows, features, outputs, loss in (
            (150, 37, 4, "softmax"),
            (20, 401, 23, "softmax"),
            (150, 37, 1, "logistic"),
        ):
            case = Case(rows, features, outputs, pair, loss)
            point, plain = case.data.at(case.Y), Plain(case, None, case.weights, 0.1)
            found = {
                "gradient": point.gradient(case.weights, 0.1),
                "hvp": point.hvp(case.V, case.weights, 0.1),
                "along": point.along(case.V),
            }
            expected = {"gradient": plain.gradient(), "hvp": plain.hvp(case.V), "along": plain.along(case.V)}
            for name, array in expected.items():
                assert_close(found[name], array, near, name)
                results[f"{name} {rows} {features} {outputs} {loss} {pair}"] = found[name]
    part = Submodel(rows=150, features=37, outputs=4)
    found = part.part.at(part.y).hvp(part.v, part.weights, 0.1)
    assert_close(found, part.gathered(Plain(part, None, part.weights, 0.1).hvp(part.V)), 1e-12)
    results["held hvp"] = found
    return results


def report(run: Callable[[], dict[str, np.ndarray]]) -> None:
    """What was compiled and computed here, as a line of JSON."""
    compiled: list[str] = []
    kernels.before_compiling.append(compiled.append)
    bits = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in run().items()}
    used = (masked.masked_pass, regression.regression_pass, sweeps.logistic_sweep, sweeps.location_sweep)
    # Only what was compiled here has its assembly language with it.
    code = [text for kernel in used for one in kernel.compiled.values() for text in one.inspect_asm().values()]
    code = code if compiled else []
    answer = {
        "vector_bytes": tiles.VECTOR_BYTES,
        "compiled": compiled,
        "bits": bits,
        "registers": [max(re.findall("[xyz]mm", text)) for text in code],
        "fused": ["vfmadd" in text for text in code],
    }
    print(json.dumps(answer))


# In the process of the tests


def start(kind: str, run: str, cache: Path) -> dict[str, Any]:
    """The report of a new process that compiles for this kind of CPU."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU")}
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    env = {**clean, **KINDS[kind], "FBOMPI_CACHE": str(cache), "PYTHONPATH": paths}
    words = [sys.executable, "-c", f"import test_cpu_kinds as t; t.report(t.{run})"]
    done = subprocess.run(words, env=env, cwd=cache, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{kind}: {done.stderr}"
    return json.loads(done.stdout)


def entries(cache: Path) -> set[str]:
    return {entry.name for entry in (cache / "kernels").iterdir() if entry.is_dir()}


def check(run: str, cache: Path) -> dict[str, dict[str, Any]]:
    """Start each kind with one cache; their reports, when they have compiled their own code and nothing twice."""
    reports, known = {}, set()
    for kind, width in VECTOR_BYTES.items():
        found = reports[kind] = start(kind, run, cache)
        assert found["vector_bytes"] == width
        assert set(found["registers"]) == {REGISTERS[width]}
        assert set(found["fused"]) == {width > 16}
        new = entries(cache) - known
        assert sorted(name.rpartition("-")[0] for name in new) == sorted(found["compiled"])
        assert found["compiled"] == reports["this"]["compiled"]
        known |= new
    again = start("this", run, cache)
    assert again["compiled"] == [] and entries(cache) == known
    assert again["bits"] == reports["this"]["bits"]
    return reports


@pytest.mark.slow
def test_sweeps_have_the_same_bits_on_every_kind(tmp_path) -> None:
    """Lanes fill a cache line whatever the registers, and a multiply-add is rounded once whether or not in hardware."""
    reports = check("run_sweeps", tmp_path)
    for kind in KINDS:
        assert reports[kind]["bits"] == reports["this"]["bits"], kind


@pytest.mark.slow
def test_regressions_are_right_on_every_kind(tmp_path) -> None:
    check("run_regression", tmp_path)
