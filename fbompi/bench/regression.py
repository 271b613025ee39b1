"""Hessian products of softmax regression: ours, and the same by hand and by autograd in NumPy, PyTorch and JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from fbompi.bench.sweeps import read
from fbompi.bench.timing import Case, in_turn
from fbompi.kernels.cpu.regression import share_out
from fbompi.kernels.regression import Regression

CLASSES = 10
FEATURES = 784
SHAPES = ((12_000, np.float64), (12_000, np.float32), (60_000, np.float32), (60_000, np.uint8))
DIRECTIONS = 6  # right-hand sides, as of the chains of PHE
HELD = (4, 16)  # parts of a model that a submodel holds, any coordinates: one in so many
MULTIPLY = 1200  # size of the dense multiplication that stands for this machine's flop rate

Contestant = Callable[[], object]


def cases(repeats: int, threads: int) -> list[Case]:
    """One product ∇²L·V at a point whose probabilities are kept, for every shape; then what else a point is asked."""
    products = [hessian_product(rows, dtype, repeats, threads) for rows, dtype in SHAPES]
    return [*products, *others(max(repeats // 2, 2), threads)]


def hessian_product(rows: int, dtype: Any, repeats: int, threads: int) -> Case:
    """Others have no products of bytes: they get float32, four times the memory."""
    rng = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    real = np.dtype(np.float32) if dtype == np.uint8 else dtype
    X = rng.integers(0, 256, (rows, FEATURES), np.uint8)
    numbers = (X / 255).astype(real)
    labels = rng.integers(0, CLASSES, rows)
    Y, V = (0.1 * rng.standard_normal((CLASSES, FEATURES)).astype(real) for _ in range(2))
    weights = np.full(rows, 1 / rows, real)
    if dtype == np.uint8:
        data = Regression(X, labels, CLASSES, scale=1 / 255, dtype=real, threads=threads)
    else:
        data = Regression(numbers, labels, CLASSES, threads=threads)
    point = data.at(Y)
    contestants: dict[str, Contestant] = {
        "fbompi": lambda: point.hvp(V, weights),
        **_numpy(numbers, point.probabilities, weights, V),
        **_torch(numbers, labels, point.probabilities, weights, Y, V, threads),
        **_jax(numbers, labels, point.probabilities, weights, Y, V),
    }
    for name, call in contestants.items():
        check(name, np.asarray(call()), point.hvp(V, weights))
    words, square = data.X.view(np.uint64), rng.random((MULTIPLY, MULTIPLY)).astype(real)

    def read_words(begin: int, end: int) -> None:
        read[np.uint64](words[begin * rows // threads : end * rows // threads])

    contestants["reading"] = lambda: share_out(read_words, threads, threads)
    contestants["multiplying"] = lambda: square @ square
    seconds = in_turn(contestants, repeats)
    rate = 2 * MULTIPLY**3 / min(seconds.pop("multiplying"))
    limit = {
        "memory": min(seconds.pop("reading")),
        "arithmetic": 4 * rows * FEATURES * (CLASSES - 1) / rate,  # two multiplications, one class being implied
    }
    return Case("hessian product", f"{rows}x{FEATURES} {dtype}, {CLASSES} classes", threads, seconds, limit)


def others(repeats: int, threads: int) -> list[Case]:
    """A gradient with its forward pass, several right-hand sides at once, and submodels; float64."""
    rng = np.random.default_rng(0)
    rows = SHAPES[0][0]
    X, labels = rng.random((rows, FEATURES)), rng.integers(0, CLASSES, rows)
    Y, weights = 0.1 * rng.standard_normal((CLASSES, FEATURES)), np.full(rows, 1 / rows)
    V = rng.standard_normal((DIRECTIONS, CLASSES, FEATURES))
    data = Regression(X, labels, CLASSES, threads=threads)
    point, onehot = data.at(Y), np.eye(CLASSES)[labels]
    P = point.probabilities

    def gradient() -> Any:
        data.last = None  # or the point would be remembered
        return data.at(Y).gradient(weights)

    def numpy_gradient() -> Any:
        S = X @ Y.T
        S -= S.max(axis=1, keepdims=True)
        E = np.exp(S)
        E /= E.sum(axis=1, keepdims=True)
        return (weights[:, None] * (E - onehot)).T @ X

    def numpy_directions() -> Any:
        U = (X @ V.reshape(-1, FEATURES).T).reshape(rows, DIRECTIONS, CLASSES)
        R = P[:, None] * (U - (P[:, None] * U).sum(axis=2, keepdims=True)) * weights[:, None, None]
        return (R.reshape(rows, -1).T @ X).reshape(V.shape)

    rounds: dict[str, dict[str, Contestant]] = {
        "gradient with its forward pass": {"fbompi": gradient, "NumPy": numpy_gradient},
        f"hessian products, {DIRECTIONS} right-hand sides": {
            "fbompi": lambda: point.hvp(V, weights),
            "fbompi, one by one": lambda: np.array([point.hvp(v, weights) for v in V]),
            "NumPy": numpy_directions,
        },
    }
    for share in HELD:
        held = np.sort(rng.choice(Y.size, Y.size // share, replace=False))
        rounds[f"hessian product of a submodel, 1/{share} held"] = _submodel(data, Y, V[0], held, weights)
    found = []
    for title, contestants in rounds.items():
        for name, call in contestants.items():
            check(name, np.asarray(call()), np.asarray(contestants["fbompi"]()))
        shape = f"{rows}x{FEATURES} float64, {CLASSES} classes"
        found.append(Case(title, shape, threads, in_turn(contestants, repeats)))
    return found


def _submodel(data: Regression, Y: Any, V: Any, held: Any, weights: Any) -> dict[str, Contestant]:
    """The product of a submodel, and the same from the whole model with zeros at what is not held."""
    submodel = data.held(held).at(Y.ravel()[held])
    zeros, spread = np.zeros((2, *Y.shape))
    zeros.flat[held] = Y.flat[held]
    spread.flat[held] = V.flat[held]
    whole = data.at(zeros)
    return {
        "fbompi": lambda: submodel.hvp(V.ravel()[held], weights),
        "fbompi, zeros in the rest": lambda: whole.hvp(spread, weights).ravel()[held],
    }


def check(name: str, result: np.ndarray, expected: np.ndarray, tolerance: float = 1e-3) -> None:
    """A contestant that computes something else is no contestant."""
    result = result if result.shape == expected.shape else result.T
    error = float(np.abs(result - expected).max() / np.abs(expected).max())
    if not error < tolerance:
        raise RuntimeError(f"{name} differs from fbompi by {error:.1e}: the comparison would mean nothing")


def _numpy(X: Any, P: Any, weights: Any, V: Any) -> dict[str, Contestant]:
    VT, w = V.T.copy(), weights[:, None]

    def residual() -> Any:
        R = P * (X @ VT)
        R -= P * R.sum(axis=1, keepdims=True)
        R *= w
        return R

    return {"NumPy": lambda: X.T @ residual(), "NumPy, RᵀX": lambda: residual().T @ X}


def _torch(X: Any, labels: Any, P: Any, weights: Any, Y: Any, V: Any, threads: int) -> dict[str, Contestant]:
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    torch.set_num_threads(threads)
    X, labels, P, w, YT, VT = map(torch.from_numpy, (X, labels, P.copy(), weights, Y.T.copy(), V.T.copy()))
    parameter = YT.clone().requires_grad_()

    def residual() -> Any:
        R = P * (X @ VT)
        R -= P * R.sum(1, keepdim=True)
        R *= w[:, None]
        return R

    def double_backward() -> Any:
        losses = torch.nn.functional.cross_entropy(X @ parameter, labels, reduction="none")
        (gradient,) = torch.autograd.grad((losses * w).sum(), parameter, create_graph=True)
        return torch.autograd.grad((gradient * VT).sum(), parameter)[0]

    return {
        "PyTorch": lambda: X.T @ residual(),
        "PyTorch, RᵀX": lambda: residual().T @ X,
        "PyTorch double backward": double_backward,
    }


def _jax(X: Any, labels: Any, P: Any, weights: Any, Y: Any, V: Any) -> dict[str, Contestant]:
    if importlib.util.find_spec("jax") is None:
        return {}
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    X, labels, P, weights, YT, VT = map(jnp.asarray, (X, labels, P, weights, Y.T, V.T))

    def residual(X: Any, P: Any, weights: Any, VT: Any) -> Any:
        R = P * (X @ VT)
        return (R - P * R.sum(1, keepdims=True)) * weights[:, None]

    def loss(YT: Any, X: Any, labels: Any, weights: Any) -> Any:
        S = X @ YT
        return weights @ (jax.nn.logsumexp(S, axis=1) - S[jnp.arange(len(S)), labels])

    by_hand = jax.jit(lambda X, P, w, VT: X.T @ residual(X, P, w, VT))
    other_order = jax.jit(lambda X, P, w, VT: residual(X, P, w, VT).T @ X)
    forward_over_reverse = jax.jit(
        lambda YT, VT, X, labels, w: jax.jvp(lambda Y: jax.grad(loss)(Y, X, labels, w), (YT,), (VT,))[1]
    )
    return {
        "JAX": lambda: by_hand(X, P, weights, VT).block_until_ready(),
        "JAX, RᵀX": lambda: other_order(X, P, weights, VT).block_until_ready(),
        "JAX jvp(grad)": lambda: forward_over_reverse(YT, VT, X, labels, weights).block_until_ready(),
    }
