"""Arrays as strict as CuPy's, without a GPU: they mix with no array of NumPy's, and turn into none by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

PROPERTIES = {"shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags", "T"}
METHODS = {
    "all", "any", "argmax", "astype", "copy", "fill", "max", "mean", "min", "ravel", "reshape", "sum", "swapaxes",
    "take", "view",
}  # fmt: skip
FROM_HOST = {"array", "asarray"}  # the only functions that take what is not on the GPU


class GpuArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Memory that only kernels and functions of the library can read; `values` is for the simulation."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @property
    def __cuda_array_interface__(self) -> dict:
        return {**self.values.__array_interface__, "version": 3, "stream": None}

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return on_gpu(getattr(ufunc, method)(*map(values, inputs), **{k: values(v) for k, v in kwargs.items()}))

    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        return on_gpu(function(*map(values, args), **{k: values(v) for k, v in kwargs.items()}))

    def __getattr__(self, name: str) -> Any:
        if name in PROPERTIES:
            return on_gpu(getattr(self.values, name))
        if name in METHODS:
            return lambda *args, **kwargs: on_gpu(getattr(self.values, name)(*map(values, args), **kwargs))
        raise AttributeError(f"{name}: CuPy's arrays may have it, the simulated ones do not")

    def __getitem__(self, key: Any) -> Any:
        return on_gpu(self.values[values(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[values(key)] = values(value)

    def __len__(self) -> int:
        return len(self.values)

    def tobytes(self) -> bytes:
        return self.values.tobytes()

    def __float__(self) -> float:
        return float(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __format__(self, spec: str) -> str:
        return format(self.values if self.ndim else self.values[()], spec)


class GpuLibrary:
    """NumPy's functions for arrays of the GPU."""

    def __init__(self, functions: Any = np) -> None:
        self.functions = functions
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.functions, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.called.add(name)
            take = from_host if name in FROM_HOST else values
            return on_gpu(found(*map(take, args), **{k: take(v) for k, v in kwargs.items()}))

        return call


def values(given: Any) -> Any:
    """What the simulated device computes with; arrays of the host are refused, as by CuPy."""
    if isinstance(given, GpuArray):
        return given.values
    if isinstance(given, np.ndarray):
        raise TypeError(f"Unsupported type {type(given)}")
    return type(given)(map(values, given)) if isinstance(given, tuple | list) else given


def from_host(given: Any) -> Any:
    return given.values if isinstance(given, GpuArray) else given


def on_gpu(result: Any) -> Any:
    """Arrays, and numbers that were computed from arrays, stay on the GPU."""
    if isinstance(result, np.ndarray | np.generic):
        return GpuArray(np.asarray(result))
    if isinstance(result, tuple) and any(isinstance(part, np.ndarray) for part in result):
        return tuple(map(on_gpu, result))
    return result
