"""Second derivatives of the two-layer network: ours, by hand in NumPy, and by PyTorch's and JAX's differentiation."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from fbompi.bench.regression import Contestant, check
from fbompi.bench.timing import Case, in_turn
from fbompi.kernels.mlp import MLP

ROWS, FEATURES, HIDDEN, CLASSES = 6_000, 784, 200, 10


def cases(repeats: int, threads: int) -> list[Case]:
    """∇²_xy L·v and the whole Hessian times (u, v), float32, at a point whose activations are kept."""
    rng = np.random.default_rng(0)
    X, labels = rng.random((ROWS, FEATURES), np.float32), rng.integers(0, CLASSES, ROWS)
    mlp = MLP(X, labels, HIDDEN, CLASSES)
    x, u = (0.05 * rng.standard_normal(mlp.dim_x) for _ in range(2))
    y, v = (0.1 * rng.standard_normal(mlp.dim_y) for _ in range(2))
    point = mlp.at(x, y)
    point.gradient_y()
    shapes = mlp.shape_x, mlp.shape_y
    cross: dict[str, Contestant] = {
        "fbompi": lambda: point.cross(v),
        "NumPy": _numpy(X, labels, *_layers(x, shapes[0]), *_layers(y, shapes[1]), *_layers(v, shapes[1])),
    }
    whole: dict[str, Contestant] = {"fbompi": lambda: np.concatenate(point.hessian(u, v))}
    for name, make in {"PyTorch double backward": _torch, "JAX jvp(grad)": _jax}.items():
        if importlib.util.find_spec(name.split()[0].lower().replace("pytorch", "torch")) is not None:
            cross[name], whole[name] = make(X, labels, x, y, u, v, shapes, threads)
    found = []
    for title, contestants in (("network, cross product", cross), ("network, Hessian product", whole)):
        expected = np.asarray(contestants["fbompi"]())
        for name, call in contestants.items():
            check(name, np.asarray(call()), expected)
        shape = f"{ROWS}x{FEATURES} float32, {HIDDEN} units, {CLASSES} classes"
        found.append(Case(title, shape, threads, in_turn(contestants, repeats)))
    return found


def _layers(z: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases, in float32."""
    layer = z.reshape(shape).astype(np.float32)
    return np.ascontiguousarray(layer[:, :-1]), layer[:, -1].copy()


def _numpy(X: Any, labels: Any, W1: Any, b1: Any, W2: Any, b2: Any, V2: Any, v2: Any) -> Contestant:
    """The cross product as one would write it, with the activations and probabilities kept."""
    A = np.maximum(X @ W1.T + b1, 0)
    S = A @ W2.T + b2
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    R = P.copy()
    R[np.arange(len(R)), labels] -= 1

    def cross() -> np.ndarray:
        U = A @ V2.T + v2
        Rdot = P * (U - (P * U).sum(axis=1, keepdims=True))
        D = (Rdot @ W2 + R @ V2) * (A > 0) / len(A)
        return np.hstack([D.T @ X, D.sum(axis=0)[:, None]]).ravel()

    return cross


def _torch(X: Any, labels: Any, x: Any, y: Any, u: Any, v: Any, shapes: Any, threads: int) -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(threads)
    X, labels = torch.from_numpy(X), torch.from_numpy(labels)
    x, y, u, v = (torch.from_numpy(z.astype(np.float32)) for z in (x, y, u, v))
    x, y = x.requires_grad_(), y.requires_grad_()

    def gradient(*of: Any) -> Any:
        first, head = x.view(shapes[0]), y.view(shapes[1])
        A = torch.relu(X @ first[:, :-1].T + first[:, -1])
        loss = torch.nn.functional.cross_entropy(A @ head[:, :-1].T + head[:, -1], labels)
        return torch.autograd.grad(loss, of, create_graph=True)

    def cross() -> Any:
        return torch.autograd.grad((gradient(y)[0] * v).sum(), x)[0]

    def whole() -> Any:
        in_x, in_y = gradient(x, y)
        return torch.cat(torch.autograd.grad((in_x * u).sum() + (in_y * v).sum(), (x, y)))

    return cross, whole


def _jax(X: Any, labels: Any, x: Any, y: Any, u: Any, v: Any, shapes: Any, threads: int) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    X, labels, x, y, u, v = map(jnp.asarray, (X, labels, *(z.astype(np.float32) for z in (x, y, u, v))))

    def loss(x: Any, y: Any, X: Any, labels: Any) -> Any:
        first, head = x.reshape(shapes[0]), y.reshape(shapes[1])
        A = jax.nn.relu(X @ first[:, :-1].T + first[:, -1])
        S = A @ head[:, :-1].T + head[:, -1]
        return (jax.nn.logsumexp(S, axis=1) - S[jnp.arange(len(S)), labels]).mean()

    gradient = jax.grad(loss, (0, 1))
    cross = jax.jit(lambda x, y, v, X, t: jax.jvp(lambda z: gradient(x, z, X, t)[0], (y,), (v,))[1])
    whole = jax.jit(
        lambda x, y, u, v, X, t: jnp.concatenate(jax.jvp(lambda a, b: gradient(a, b, X, t), (x, y), (u, v))[1])
    )
    return (
        lambda: cross(x, y, v, X, labels).block_until_ready(),
        lambda: whole(x, y, u, v, X, labels).block_until_ready(),
    )
