"""Submodels: their oracles are those of the whole at zero-padded vectors; who holds what; averages over holders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbompi.algorithms.mask_file import read_masks
from fbompi.algorithms.masks import Covering, MaskParameters, Submodels
from fbompi.algorithms.setting import Setting
from fbompi.config import Clients
from fbompi.errors import UserError
from fbompi.messages import Shapes
from fbompi.participation import Participation
from fbompi.problem import CutOut, Oracles, blocks, spread
from fbompi.problems.datacleaning import DataCleaning
from fbompi.problems.hypercleaning import HyperCleaning
from fbompi.problems.hyperrep import HyperRepresentation
from fbompi.problems.quadratic import Quadratic
from fbompi.problems.regcoef import RegularisationCoefficients
from fbompi.problems.vsloss import VsLoss

Array = np.ndarray
SMALL: dict[str, Any] = {"train": 60, "validation": 30, "test": 30}
PROBLEMS = {
    "quadratic": Quadratic(dim_x=4, dim_y=7, noise=0.3),
    "hypercleaning": HyperCleaning(**SMALL),
    "datacleaning": DataCleaning(**SMALL, weighting="clipped"),
    "datacleaning mlp": DataCleaning(**SMALL, model="mlp", hidden=6),
    "regcoef": RegularisationCoefficients(**SMALL),
    "regcoef binary plain": RegularisationCoefficients(**SMALL, form="plain", against=3),
    "hyperrep": HyperRepresentation(**SMALL, hidden=6),
    "vsloss": VsLoss(**SMALL),
    "vsloss printed": VsLoss(**SMALL, objective="printed"),
    "vsloss mlp": VsLoss(**SMALL, model="mlp", hidden=6),
}
CLIENTS, CLIENT = 3, 1


def setting(problem: Any, capacity: Any = 0.5, clients: int = CLIENTS, seed: int = 0) -> Setting:
    shapes = Shapes(blocks(problem, clients), problem.dim_x, problem.dim_y, 2)
    return Setting(
        shapes=shapes, smoothness=1.0, rounds=10, seed=seed, participation=Participation(Clients(), clients, seed),
        capacity=np.resize(np.atleast_1d(capacity), clients), project_x=lambda z: z, project_y=lambda z: z,
        met=lambda: 0.0, units=problem.units() if hasattr(problem, "units") else None,
    )  # fmt: skip


def submodels(problem: Any, capacity: Any = 0.5, clients: int = CLIENTS, seed: int = 0, **keys: Any) -> Submodels:
    return Submodels(MaskParameters(**keys), setting(problem, capacity, clients, seed))


def plain(dim_x: int, dim_y: int) -> Any:
    """A problem that names no units, as masks see it."""
    return SimpleNamespace(dim_x=dim_x, dim_y=dim_y)


def answers(dealt: Any, clients: list[int], *values: list[Array]) -> list[Any]:
    """What a round brings back."""
    return [SimpleNamespace(client=c, arrays=parts) for c, *parts in zip(clients, *values)]


class Scene:
    """A shard, a mask that keeps some of its units, and the submodel it leads to."""

    def __init__(self, name: str, policy: str = "static", masked: str = "both") -> None:
        problem = PROBLEMS[name]
        block = blocks(problem, CLIENTS)[CLIENT]
        self.whole = Oracles(problem, problem.shard(CLIENT, CLIENTS), block.stop - block.start)
        rng = np.random.default_rng(5)
        x, y = rng.uniform(0.2, 0.8, problem.dim_x), 0.3 * rng.standard_normal(problem.dim_y)
        masks = submodels(problem, masks=policy, masked=masked).masks(2, CLIENT, x, y)
        self.held_x, self.held_y = map(np.flatnonzero, masks)
        self.part = self.whole.held(self.held_x, self.held_y)
        self.x, self.y, self.v = x[block][self.held_x], y[self.held_y], rng.standard_normal(len(self.held_y))

    def padded(self) -> tuple[Array, Array, Array]:
        q = self.whole.problem.dim_y
        return spread(self.x, self.held_x, self.whole.size_x), spread(self.y, self.held_y, q), spread(
            self.v, self.held_y, q
        )  # fmt: skip


@pytest.mark.parametrize("batch", [None, [3, 0, 3, 7]], ids=["shard", "batch"])
@pytest.mark.parametrize("policy", ["static", "rolling"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_an_oracle_of_a_submodel_is_that_of_the_whole_at_zero_padded_vectors(
    name: str, policy: str, batch: list[int] | None
) -> None:
    s, rows = Scene(name, policy), None if batch is None else np.array(batch)
    assert not isinstance(s.part, CutOut), "this problem has submodels of its own"
    assert len(s.y) < s.whole.problem.dim_y
    X, Y, V = s.padded()
    at, At = (s.x, s.y), (X, Y)
    pairs = [
        (s.part.upper(*at, rows), s.whole.upper(*At, rows)),
        (s.part.lower(*at, rows), s.whole.lower(*At, rows)),
        (s.part.upper_grad(*at, rows)[0], s.whole.upper_grad(*At, rows)[0][s.held_x]),
        (s.part.upper_grad(*at, rows)[1], s.whole.upper_grad(*At, rows)[1][s.held_y]),
        (s.part.lower_grad(*at, rows), s.whole.lower_grad(*At, rows)[s.held_y]),
        (s.part.lower_grad_x(*at, rows), s.whole.lower_grad_x(*At, rows)[s.held_x]),
        (s.part.hvp(*at, s.v, rows), s.whole.hvp(*At, V, rows)[s.held_y]),
        (s.part.cross(*at, s.v, rows), s.whole.cross(*At, V, rows)[s.held_x]),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_submodel_is_a_problem_of_its_own_whose_oracles_are_derivatives(name: str) -> None:
    s, rng, eps = Scene(name), np.random.default_rng(1), 1e-6
    u, v = rng.standard_normal(s.x.size), s.v
    part, x, y = s.part, s.x, s.y
    in_x, in_y = part.upper_grad(x, y)
    assert slope(lambda t: part.upper(x + t * u, y + t * v), eps) == pytest.approx(
        in_x @ u + in_y @ v, rel=1e-5, abs=1e-7
    )
    in_x, in_y = part.lower_grad_x(x, y), part.lower_grad(x, y)
    assert slope(lambda t: part.lower(x + t * u, y + t * v), eps) == pytest.approx(
        in_x @ u + in_y @ v, rel=1e-5, abs=1e-7
    )
    np.testing.assert_allclose(slope(lambda t: part.lower_grad(x, y + t * v), eps), part.hvp(x, y, v), atol=1e-6)
    np.testing.assert_allclose(slope(lambda t: part.lower_grad_x(x, y + t * v), eps), part.cross(x, y, v), atol=1e-6)


def slope(f: Any, eps: float) -> Any:
    return (f(eps) - f(-eps)) / (2 * eps)


@pytest.mark.parametrize("batch", [None, np.array([3, 0, 3])], ids=["shard", "batch"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_of_many_models_are_those_of_each(name: str, batch: Array | None) -> None:
    s, rng = Scene(name), np.random.default_rng(2)
    X, Y, _ = s.padded()
    for oracles, x, y in ((s.part, s.x, s.y), (s.whole, X, Y), (CutOut(s.whole, s.held_x, s.held_y), s.x, s.y)):
        xs, ys = x + 0.1 * rng.random((4, x.size)), y + 0.1 * rng.random((4, y.size))
        expected = [oracles.lower_grad(*at, batch) for at in zip(xs, ys)]
        np.testing.assert_allclose(oracles.lower_grads(xs, batch)(ys), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("masked", ["x", "y", "any"])
def test_any_other_mask_is_cut_out_of_the_whole_or_has_a_form_of_its_own(name: str, masked: str) -> None:
    """Parts of units, one variable alone: nothing that a mask can be leads to another function."""
    problem, rng = PROBLEMS[name], np.random.default_rng(3)
    whole = Scene(name).whole
    keep_x, keep_y = (rng.random(n) < (0.6 if masked in ("any", side) else 2) for n, side in (
        (whole.size_x, "x"), (problem.dim_y, "y")
    ))  # fmt: skip
    held_x, held_y = np.flatnonzero(keep_x), np.flatnonzero(keep_y)
    x, y = rng.uniform(0.2, 0.8, len(held_x)), rng.standard_normal(len(held_y))
    part, X, Y = whole.held(held_x, held_y), spread(x, held_x, whole.size_x), spread(y, held_y, problem.dim_y)
    np.testing.assert_allclose(part.lower_grad(x, y), whole.lower_grad(X, Y)[held_y], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(part.cross(x, y, y), whole.cross(X, Y, Y)[held_x], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(part.upper_grad(x, y)[1], whole.upper_grad(X, Y)[1][held_y], rtol=1e-10, atol=1e-12)


# Who holds what


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(["static", "rolling", "ordered", "importance"]), masked=st.sampled_from(["both", "x", "y"]),
    p=st.integers(1, 60), q=st.integers(1, 60), capacity=st.sampled_from([1.0, 0.5, 0.25, 0.125, 0.0625, 0.3]),
    round_=st.integers(0, 200), stride=st.integers(1, 7), seed=st.integers(0, 5),
)  # fmt: skip
def test_a_mask_is_as_large_as_the_capacity_and_a_function_of_what_it_is_asked_for(
    policy, masked, p, q, capacity, round_, stride, seed
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal(p), rng.standard_normal(q)
    keys = {"masks": policy, "masked": masked, "stride": stride}
    masks = submodels(plain(p, q), capacity, seed=seed, **keys).masks(round_, 2, x, y)
    for mask, size, side in zip(masks, (p, q), "xy"):
        assert mask.sum() == (np.ceil(round(capacity * size, 9)) if masked in (side, "both") else size)
    again = submodels(plain(p, q), capacity, seed=seed, **keys).masks(round_, 2, x, y)
    assert all(map(np.array_equal, masks, again))


def test_policies_hold_what_they_are_named_for() -> None:
    problem, x, y = plain(8, 8), np.zeros(8), np.array([0.1, -5, 0.2, 3, 0, 0, 4, 0])

    def held(round_: int, client: int = 0, **keys: Any) -> list[int]:
        return np.flatnonzero(submodels(problem, 0.375, **keys).masks(round_, client, x, y)[1]).tolist()

    assert held(5, masks="ordered") == [0, 1, 2]
    assert [held(j, masks="rolling") for j in (0, 1, 6)] == [[0, 1, 2], [1, 2, 3], [0, 6, 7]]
    assert held(2, masks="rolling", stride=3) == [0, 6, 7]
    assert held(0, masks="importance") == [1, 3, 6]
    assert held(0, masks="static") == held(9, masks="static")
    assert len({tuple(held(0, client, masks="static")) for client in range(3)}) > 1, "clients have subsets of their own"
    assert len({tuple(held(0, client, masks="importance", masked="both")) for client in range(3)}) == 1


def test_equal_units_are_not_all_clients_first_choice() -> None:
    """At y = 0 nothing is more important than the rest: all would hold the same part, and train it alone for ever."""
    many = submodels(plain(2, 64), 0.25, clients=30)
    holders = sum(many.masks(0, c, np.ones(2), np.zeros(64))[1].astype(int) for c in range(30))
    assert holders.min() > 0


def test_a_smaller_client_holds_a_part_of_what_a_larger_one_does() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 40))
    for policy in ("rolling", "ordered", "importance"):
        sizes = submodels(plain(40, 40), [1, 0.5, 0.125], masks=policy)
        large, half, small = (sizes.masks(7, c, x, y)[1] for c in range(3))
        assert large.all() and half[small].all() and small.sum() == 5


def test_a_unit_is_held_with_all_its_coordinates_of_x_and_y_and_biases_by_everybody() -> None:
    problem = PROBLEMS["hyperrep"]
    units_x, units_y = problem.units()
    mask_x, mask_y = submodels(problem, 1 / 3, masks="rolling").masks(
        3, 0, np.ones(problem.dim_x), np.ones(problem.dim_y)
    )
    assert set(units_x[mask_x]) == {3, 4} and set(units_y[mask_y]) == {3, 4, -1}
    assert np.array_equal(mask_x, np.isin(units_x, [3, 4])) and np.array_equal(mask_y, np.isin(units_y, [3, 4, -1]))


def test_where_clients_own_blocks_of_x_the_mask_is_over_the_block() -> None:
    problem = plain(9, 2)
    problem.block = lambda client, clients: slice(3 * client, 3 * client + 3)
    masks = submodels(problem, 1 / 3, masks="rolling")
    x = np.arange(9.0)
    assert [masks.masks(j, 2, x, np.zeros(2))[0].tolist() for j in (0, 2)] == [[1, 0, 0], [0, 0, 1]]
    dealt = masks.deal(0, x, np.zeros(2))
    mean, holders = dealt.mean_x(answers(dealt, [0, 2], [np.array([6.0]), np.array([9.0])]))
    np.testing.assert_array_equal(mean, [3, 0, 0, 0, 0, 0, 4.5, 0, 0])  # of two that answered: one has nothing to say
    np.testing.assert_array_equal(holders, [1, 0, 0, 0, 0, 0, 1, 0, 0])


def test_nothing_to_leave_out_is_said() -> None:
    with pytest.raises(UserError, match=r'masked = "x": clients\.capacity = 0\.5'):
        submodels(PROBLEMS["hypercleaning"], masked="x")


# Averages and covering numbers


def test_the_average_is_over_holders_and_a_coordinate_that_nobody_holds_is_left_alone() -> None:
    dealt = submodels(plain(1, 4), [0.5, 0.75, 0.25], masks="ordered").deal(0, np.ones(1), np.zeros(4))
    parts = [np.array([1.0, 2.0]), np.array([4.0, 5.0, 6.0]), np.array([7.0])]
    mean, holders = dealt.mean_y(answers(dealt, [0, 1, 2], parts))
    np.testing.assert_allclose(mean, [4, 3.5, 6, 0])
    np.testing.assert_array_equal(holders, [3, 2, 1, 0])


def test_covering_is_the_least_over_rounds_of_coordinates_that_anybody_holds() -> None:
    covering = Covering()
    assert np.isnan(list(covering.covering().values())).all()
    covering.cover(holders_x=np.array([3, 0, 2]), holders_y=np.array([5, 5]))
    covering.cover(holders_x=np.array([4, 0, 4]), holders_y=np.array([0, 1]))
    assert covering.covering() == {"covering_x": 2.0, "covering_y": 1.0}


# Masks from a file


def test_masks_from_files_are_those_of_the_files(tmp_path: Path) -> None:
    problem, x, y = plain(2, 4), np.ones(2), np.ones(4)
    rounds = np.array([[[1, 1, 0, 0], [0, 0, 1, 1]], [[0, 1, 1, 0], [1, 0, 0, 1]]])
    np.savez(tmp_path / "m.npz", y=rounds)
    found = submodels(problem, 0.5, 2, masks="given", masks_file=str(tmp_path / "m.npz"), masked="y")
    for j in range(4):
        for client in range(2):
            np.testing.assert_array_equal(found.masks(j, client, x, y)[1], rounds[j % 2, client])
    assert found.masks(0, 0, x, y)[0].all()
    (tmp_path / "m.csv").write_text("# two rounds\n0,1\n2,3\n\n1,2\n3,0\n")
    same = submodels(problem, 0.5, 2, masks="given", masks_file=str(tmp_path / "m.csv"), masked="y")
    for j in range(4):
        for client in range(2):
            assert all(map(np.array_equal, same.masks(j, client, x, y), found.masks(j, client, x, y)))


def test_a_row_of_units_holds_their_coordinates_of_both_variables(tmp_path: Path) -> None:
    problem = PROBLEMS["regcoef"]
    (tmp_path / "m.csv").write_text("5,7\n" * CLIENTS)
    found = submodels(problem, 0.5, masks="given", masks_file=str(tmp_path / "m.csv"))
    mask_x, mask_y = found.masks(0, 0, np.ones(problem.dim_x), np.ones(problem.dim_y))
    np.testing.assert_array_equal(np.flatnonzero(mask_x), [5, 7, 64])
    np.testing.assert_array_equal(mask_y.reshape(10, -1), np.tile(mask_x, (10, 1)))


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("", b"", 'masks "given" needs a file'),
        ("m.txt", b"", "ends with .npz or .csv"),
        ("no.csv", None, "cannot be read"),
        ("no.npz", None, "cannot be read"),
        ("m.npz", b"PK\x03\x04 damaged", "not an .npz archive"),
        ("m.npz", b"", "not an .npz archive"),
        ("m.npz", b"0,1\n2,3\n", "not an .npz archive"),
        ("m.csv", b"\xff\xfe\x00", "cannot be read"),
        ("m.csv", b"0,1\n", "1 rows: expected 2"),
        ("m.csv", b"# nothing\n", "0 rows: expected 2"),
        ("m.csv", b"0,1\n2,4\n", "line 2: client 1 has units 0 to 3, not"),
        ("m.csv", b"0,1\n2,-1\n", "line 2: client 1 has units 0 to 3, not"),
        ("m.csv", b"0,1\n2;3\n", "line 2: expected numbers of units"),
        ("m.csv", b"0,1,2\n2,3\n", "line 1: client 0 holds 3 of 4, more than clients.capacity = 0.5"),
    ],
)
def test_files_that_are_no_masks_are_refused(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is not None and name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        submodels(plain(2, 4), 0.5, 2, masks="given", masks_file=str(tmp_path / name) if name else "", masked="y")


@pytest.mark.parametrize(
    "arrays, said",
    [
        ({"z": np.ones((2, 4))}, "expected arrays x and y"),
        ({"y": np.ones((2, 5))}, "y has shape"),
        ({"y": np.ones((0, 2, 4))}, "y has shape"),
        ({"y": np.full((2, 4), 0.5)}, "only 0 and 1"),
        ({"y": np.full((2, 4), "a")}, "only 0 and 1"),
        ({"y": np.full((2, 4), None)}, "cannot be read"),
        ({"y": np.ones((2, 4))}, "y of round 0: client 0 holds 4 of 4"),
        ({"x": np.eye(2), "y": [np.eye(4)[:2], np.ones((2, 4))]}, "y of round 1: client 0 holds 4 of 4"),
    ],
)
def test_arrays_that_are_no_masks_are_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(UserError, match=said):
        submodels(plain(2, 4), 0.5, 2, masks="given", masks_file=str(tmp_path / "m.npz"))


def test_rows_of_units_are_refused_where_there_are_two_kinds() -> None:
    with pytest.raises(UserError, match=r"use an \.npz file"):
        submodels(plain(2, 4), 0.5, masks="given", masks_file="m.csv")


def test_damaged_archives_of_masks_are_refused(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "m.npz"
    np.savez_compressed(path, y=np.zeros((2, 4)))
    whole = path.read_bytes()
    for place in range(30, len(whole) - 80, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"m\.npz"):
            read_masks(str(path), submodels(plain(4, 4), 0.5, masked="y"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y", "no array")
    with pytest.raises(UserError, match="not an array"):
        read_masks(str(path), submodels(plain(4, 4), 0.5, masked="y"))


def test_work_is_that_of_the_whole_where_a_problem_has_no_submodels() -> None:
    from fbompi.client import WORK, Client
    from fbompi.messages import pack_mask
    from fbompi.problem import Oracles
    from fbompi.problems.quadratic import Quadratic

    class Whole(Quadratic):
        name = ""
        submodel = None

        def __getattribute__(self, name: str):
            if name == "submodel":
                raise AttributeError(name)
            return super().__getattribute__(name)

    spent = {}
    for problem in (Quadratic(), Whole()):
        client = Client(Oracles(problem, problem.shard(0, 2)), 0, 0, 0)
        half = client.held(pack_mask(np.arange(10) < 5), pack_mask(np.arange(20) < 10))
        half.lower_grad(np.zeros(5), np.zeros(10))
        spent[type(problem).__name__] = client.costs[WORK]
    assert spent == {"Quadratic": 32 * 15, "Whole": 32 * 30}
