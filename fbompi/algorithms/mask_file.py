"""Masks from a file, checked against the sizes of the problem and the capacities of clients.

``.npz``: arrays ``x`` and ``y`` of 0 and 1, clients × coordinates or rounds × clients × coordinates, rounds being used
in turn; without one of them all of that variable is held.

``.csv``: the numbers of the units that a client holds, one row per client; as many times more rows as there are rounds,
used in turn. It needs one kind of units: a problem that names some, or `masked` of x or y alone. Lines that begin with
# are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fbompi.archive import Archive
from fbompi.errors import UserError
from fbompi.messages import Array
from fbompi.rows import read_rows

if TYPE_CHECKING:
    from fbompi.algorithms.masks import Submodels

Given = Callable[[int, int], tuple[Array, Array]]  # (round, client) -> masks over the client's x, and over y


def read_masks(path: str, submodels: Submodels) -> Given:
    """The masks of a file, as a function of the round and the client."""
    if not path:
        raise UserError('algorithm.masks_file = "": masks "given" needs a file, .npz or .csv')
    if Path(path).suffix not in (".npz", ".csv"):
        raise UserError(f'algorithm.masks_file = "{path}": expected a name that ends with .npz or .csv')
    return (_from_npz if path.endswith(".npz") else _from_csv)(path, submodels)


def _from_npz(path: str, submodels: Submodels) -> Given:
    setting, shapes = submodels.setting, submodels.setting.shapes
    m = setting.clients
    try:
        with open(path, "rb") as raw:
            file = Archive(raw, f'algorithm.masks_file = "{path}"')
            arrays = {name: file.array(name) for name in file.names}
    except UserError:
        raise
    except Exception as e:  # NumPy and zipfile raise almost anything on damaged bytes
        raise UserError(f'algorithm.masks_file = "{path}": cannot be read: {e}') from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise UserError(f"{path}: holds something that is not an array")
    sizes = {"x": shapes.dim_x, "y": shapes.dim_y}
    if not arrays or not arrays.keys() <= sizes.keys():
        raise UserError(f"{path}: expected arrays x and y, or one of them, found {', '.join(arrays) or 'none'}")
    masks = {}
    for name, array in arrays.items():
        rounds = array if array.ndim == 3 else array[None]
        if rounds.shape[1:] != (m, sizes[name]) or not len(rounds):
            raise UserError(f"{path}: {name} has shape {array.shape}: expected (rounds, {m}, {sizes[name]}) or without")
        if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
            raise UserError(f"{path}: {name}: expected only 0 and 1")
        masks[name] = rounds.astype(np.bool_)

    def given(round_: int, client: int) -> tuple[Array, Array]:
        block, parts = shapes.blocks[client], []
        for name, part in (("x", block), ("y", slice(0, shapes.dim_y))):
            if name in masks and submodels.p.masked in (name, "both"):
                parts.append(masks[name][round_ % len(masks[name]), client, part])
            else:
                parts.append(np.ones(part.stop - part.start, np.bool_))
        return parts[0], parts[1]

    for round_ in range(max(map(len, masks.values()))):
        for client, block in enumerate(shapes.blocks):
            for group in submodels.client_groups(block):
                for name, mask, units in zip("xy", given(round_, client), (group.x, group.y)):
                    if name not in masks:
                        continue
                    held, able = int(mask[units >= 0].sum()), int((units >= 0).sum())
                    _fits(submodels, f"{path}, {name} of round {round_}", client, held, able)
    return given


def _from_csv(path: str, submodels: Submodels) -> Given:
    setting, m = submodels.setting, submodels.setting.clients
    if len(submodels.groups) > 1:
        raise UserError(
            f'algorithm.masks_file = "{path}": this problem has no units, and a row cannot tell coordinates of x from '
            'those of y: use an .npz file, or algorithm.masked = "x" or "y"'
        )
    rows: list[Array] = []
    for number, units in read_rows(path, "algorithm.masks_file", "numbers of units", int):
        client = len(rows) % m
        count = submodels.client_groups(setting.shapes.blocks[client])[0].count
        row = np.unique(units)
        if row[0] < 0 or row[-1] >= count:
            raise UserError(
                f"{path}, line {number}: client {client} has units 0 to {count - 1}, not {row[0]}, {row[-1]}"
            )
        _fits(submodels, f"{path}, line {number}", client, len(row), count)
        rows.append(row)
    if not rows or len(rows) % m:
        raise UserError(f"{path}: {len(rows)} rows: expected {m}, one per client, or a multiple of it")

    def given(round_: int, client: int) -> tuple[Array, Array]:
        group = submodels.client_groups(setting.shapes.blocks[client])[0]
        held = np.zeros(group.count + 1, np.bool_)
        held[-1] = True
        held[rows[round_ * m % len(rows) + client]] = True
        return held[group.x], held[group.y]

    return given


def _fits(submodels: Submodels, where: str, client: int, held: int, able: int) -> None:
    """Refuse a mask that holds more than its client can."""
    if held > submodels.limit(client, able):
        raise UserError(
            f"{where}: client {client} holds {held} of {able}, more than clients.capacity = "
            f"{submodels.setting.capacity[client]:g} of them"
        )
