"""A run file as arrays and tables, for people: ``fbompi.open("run.h5")``.

The file may still be being written, or its writer may have been killed: what is shown is the run as it was at the last
commit when it was opened. Nothing is kept open.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fbompi.config import tomllib
from fbompi.record import reading
from fbompi.summary import NOT_METRICS, page, summary

ITERATES = ("x", "y")
TELLING = ("accuracy", "x_error", "balanced_accuracy", "auc", "y_error")
VALUES = ("upper", "lower", "grad_norm")  # that every run has
OWN = ("upper_average", "change", "planes", "gap", "covering_x", "covering_y")  # how a method is doing inside


class Run:
    """A run, read from its file.

    Columns of the trajectory are had by name, ``run["accuracy"]``, one entry per recorded row, with their `meaning` and
    `unit` as the file tells them. The log of arrivals and the iterates x and y, which may be large, are read when they
    are first asked for.

    Attributes
    ----------
    path : Path
        Where the file is.
    attributes : dict
        What the file says of itself: status, seed, ranks, link, host, created, versions.
    config : dict
        The whole configuration, defaults included, by section.
    columns : list of str
        The names that `run[name]` knows.
    seed, ranks : int
        As the file says.
    metrics : list of str
        Those that tell how well the run went, the most telling first.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with reading(path) as file:
            self.attributes: dict[str, Any] = {name: _plain(value) for name, value in file.attrs.items()}
            self.config: dict[str, dict[str, Any]] = tomllib.loads(self.attributes.pop("config"))
            trajectory = file["trajectory"]
            self._rows = min((len(column) for column in trajectory.values()), default=0)
            self._values = {n: c[: self._rows] for n, c in trajectory.items() if n not in ITERATES and c.ndim == 1}
            self._described = {n: (_text(c.attrs["meaning"]), _text(c.attrs["unit"])) for n, c in trajectory.items()}
            self.seed, self.ranks = int(self.attributes["seed"]), int(self.attributes["ranks"])
            self._answers = len(file["events"])
            _expect(file["events"], ("client", "kind", "age", "time_sent", "time_arrived", "compute"))
            _expect(file["clients"], ("shard_size", "rank", "delay_factor", "state"))
            self._clients = _rows(file["clients"])
            # Format 1 had neither of these
            self._incidents, self._starts = (_rows(file[n]) if n in file else {} for n in ("incidents", "starts"))
            self.partition_rule = _text(file["partition"].attrs["rule"]) if "partition" in file else ""
            self.partition = {n: table[()] for n, table in file["partition"].items()} if "partition" in file else {}
            kinds = h5py.check_enum_dtype(file["events"].dtype["kind"]) or {}
            self.kinds = {int(code): str(name) for name, code in kinds.items()}
        self.columns = list(self._described)
        self.metrics = sorted((n for n in self._values if n not in NOT_METRICS), key=_order)

    # The trajectory

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._values:
            return self._values[name]
        if name in self._described:
            return self._read(lambda file: file["trajectory"][name][: self._rows])
        raise KeyError(f"{self.path} has no column {name!r}; it has {', '.join(self.columns)}")

    def __contains__(self, name: object) -> bool:
        return name in self._described

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        """How many rows were recorded."""
        return self._rows

    def meaning(self, name: str) -> str:
        """What a column is, in words."""
        return self._described[name][0]

    def unit(self, name: str) -> str:
        """A column's unit; of time, that of the clock in use."""
        unit, semicolon, other = self._described[name][1].partition("; ")
        virtual = " on the virtual link"
        return other.removesuffix(virtual) if semicolon and other.endswith(virtual) and self.link == "virtual" else unit

    @property
    def trajectory(self) -> Any:
        """All columns but the iterates, as a table."""
        return _table(self._values)

    # What the file says of itself

    @property
    def status(self) -> str:
        """running (or killed while it ran), interrupted, complete or failed."""
        return str(self.attributes["status"])

    @property
    def link(self) -> str:
        """mpi or virtual."""
        return str(self.attributes["link"])

    @property
    def rounds(self) -> int:
        """Outer rounds done, as far as they are recorded."""
        return int(self["round"][-1]) if self._rows else 0

    # Tables

    @cached_property
    def arrivals(self) -> np.ndarray:
        """The log of arrivals as it is stored; `kinds` names its kinds."""
        return self._read(lambda file: file["events"][: self._answers])

    @cached_property
    def events(self) -> Any:
        """One row per answer: a pandas DataFrame, or without pandas a structured array."""
        log = self.arrivals
        names = np.array([self.kinds.get(code, "?") for code in range(256)])
        columns = {name: log[name] for name in log.dtype.names or ()}
        if _has("pandas"):
            import pandas as pd

            known = dict.fromkeys([*self.kinds.values(), *np.unique(names[log["kind"]]).tolist()])
            columns["kind"] = pd.Categorical(names[log["kind"]], list(known))
        else:
            columns["kind"] = names[log["kind"]]
        if "rejected" in columns:
            columns["rejected"] = log["rejected"].astype(bool)
        return _table(columns)

    @property
    def clients(self) -> Any:
        """One row per client, likewise."""
        return _table(self._clients)

    @property
    def incidents(self) -> Any:
        """What befell ranks and clients, in order, likewise."""
        return _table(self._incidents)

    @property
    def starts(self) -> Any:
        """One row per process that wrote the file, likewise."""
        return _table(self._starts)

    @cached_property
    def final(self) -> dict[str, np.ndarray]:
        """The last iterate and what else the method gave at the end; empty while the run goes on."""
        return self._read(lambda file: {n: a[()] for n, a in file["final"].items()} if "final" in file else {})

    def xarray(self) -> Any:
        """The trajectory, iterates included, as an xarray Dataset with meanings and units."""
        import xarray as xr

        arrays = {}
        for name in self.columns:
            values, attrs = self[name], {"long_name": self.meaning(name), "units": self.unit(name)}
            arrays[name] = (("record", f"{name}_index")[: values.ndim], values, attrs)
        plain = {name: value for name, value in self.attributes.items() if value is not None}
        return xr.Dataset(arrays, attrs=plain).set_coords([n for n in ("round", "time") if n in arrays])

    # For prompts and notebooks

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of `fbompi inspect --json`."""
        return summary(self.path)

    def __repr__(self) -> str:
        return f"{self.path}\n{page(self.summary)}"

    def _repr_html_(self) -> str:
        head, *rest = page(self.summary).splitlines()
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td><td>{first:.4g}</td><td>{last:.4g}</td>"
            f"<td style='text-align:left'>{escape(self.meaning(name))}</td></tr>"
            for name in self.metrics
            for first, last in [_ends(self[name])]
        )
        words = "<br>".join(escape(line) for line in rest if not line.startswith("  "))
        return (
            f"<div><b>{escape(head)}</b><br><code>{escape(str(self.path))}</code>"
            f"<table><thead><tr><th style='text-align:left'>metric</th><th>first</th><th>last</th>"
            f"<th style='text-align:left'>meaning</th></tr></thead><tbody>{rows}</tbody></table>"
            f"<small>{words}</small></div>"
        )

    def _read(self, part: Any) -> Any:
        with reading(self.path) as file:
            return part(file)


def _expect(table: h5py.Dataset, columns: tuple[str, ...]) -> None:
    if missing := set(columns) - set(table.dtype.names or ()):
        raise ValueError(f"{table.name} has no column {', '.join(sorted(missing))}")


def _order(name: str) -> tuple[int, int, str]:
    """Accuracies and errors, then what else a problem tells, then values that every run has, then a method's own."""
    for place, known in enumerate((TELLING, VALUES, OWN)):
        if name in known:
            return (0, 2, 3)[place], known.index(name), name
    return 1, 0, name


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The first and the last that are known."""
    known = values[np.isfinite(values)]
    return (float(known[0]), float(known[-1])) if len(known) else (np.nan, np.nan)


def _rows(table: h5py.Dataset) -> dict[str, np.ndarray]:
    """The columns of a table: texts as str, names in place of codes."""
    rows, columns = table[()], {}
    for name in table.dtype.names or ():
        names = h5py.check_enum_dtype(table.dtype[name])
        if names:
            words = {int(code): word for word, code in names.items()}
            columns[name] = np.array([words.get(code, "?") for code in rows[name].tolist()], object)
        elif rows[name].dtype.kind == "O":
            columns[name] = np.array([_text(value) for value in rows[name]], object)
        else:
            columns[name] = rows[name].copy()
    return columns


def _table(columns: dict[str, np.ndarray]) -> Any:
    """A DataFrame where pandas is there, else a structured array."""
    if _has("pandas"):
        import pandas as pd

        return pd.DataFrame(columns)
    length = len(next(iter(columns.values()), ()))
    rows = np.empty(length, [(name, values.dtype) for name, values in columns.items()])
    for name, values in columns.items():
        rows[name] = values
    return rows


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
