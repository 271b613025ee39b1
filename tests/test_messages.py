"""What travels is a header and numbers: it comes out as it went in, and anything else is refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fbompi.messages import (
    HEADER_WORDS,
    Shapes,
    empty_buffer,
    framed,
    mask_size,
    pack,
    pack_mask,
    split,
    task,
    unpack,
    unpack_mask,
)

WORDS = ("x", "y", "1", "yy", "xy", "metrics")
INT64 = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats()  # NaN, infinities, −0 and subnormal numbers among them


@st.composite
def messages(draw: st.DrawFn) -> tuple:
    """Sizes of a problem with blocks of x, a client, words, and arrays of their shapes."""
    clients, dim_x, dim_y = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 5))
    cuts = [0, *sorted(draw(st.lists(st.integers(0, dim_x), min_size=clients - 1, max_size=clients - 1))), dim_x]
    shapes = Shapes([slice(a, b) for a, b in pairwise(cuts)], dim_x, dim_y, draw(st.integers(2, 6)))
    client, words = draw(st.integers(0, clients - 1)), tuple(draw(st.lists(st.sampled_from(WORDS), max_size=4)))
    places = shapes.layout(words, client).places
    arrays = [draw(hnp.arrays(np.float64, shape, elements=DOUBLES)) for _, _, shape in places]
    return shapes, client, words, arrays


def packed(arrays: list, room: int = 0, **fields) -> tuple[np.ndarray, int]:
    buffer = empty_buffer(8 * (HEADER_WORDS + sum(a.size for a in arrays) + room))
    return buffer, pack(buffer, 3, 1, 7, arrays, **fields)


def bits(arrays) -> list[tuple]:
    return [(a.shape, np.ascontiguousarray(a).tobytes()) for a in arrays]


@given(messages(), st.integers(0, 9))
def test_arrays_come_out_bit_for_bit_as_they_went_in(message, room):
    shapes, client, words, arrays = message
    buffer, size = packed(arrays, room)
    _, payload = unpack(buffer, size)
    assert bits(split(payload, shapes.layout(words, client))) == bits(arrays)


@given(
    kind=st.integers(0, 2**17), client=st.integers(0, 2**31), number=INT64, local_steps=st.integers(1, 10**9),
    delay=DOUBLES, compute=DOUBLES, curvature=DOUBLES, costs=st.lists(INT64, min_size=5, max_size=5),
)  # fmt: skip
def test_headers_come_out_as_they_went_in(kind, client, number, local_steps, delay, compute, curvature, costs):
    buffer = empty_buffer(8 * (HEADER_WORDS + 2))
    header, _ = unpack(
        buffer, pack(buffer, kind, client, number, [np.ones(2)], local_steps, delay, compute, curvature, costs)
    )
    assert (header.kind, header.client, header.number, header.length) == (kind, client, number, 2)
    assert (header.local_steps, list(header.costs)) == (local_steps, costs)
    told = header.delay, header.compute, header.curvature
    assert bits(np.array([told])) == bits(np.array([[delay, compute, curvature]]))


@pytest.mark.parametrize(
    "array",
    [np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::-2], np.float64(3.0).reshape(()), np.arange(4, dtype="i4"),
     np.ones(3, "f4"), np.zeros(0)],
    ids=["transposed", "strided", "a number", "whole numbers", "single precision", "nothing"],
)  # fmt: skip
def test_any_array_travels_as_plain_numbers_in_row_order(array):
    buffer, size = packed([array])
    np.testing.assert_array_equal(unpack(buffer, size)[1], array.ravel().astype(np.float64))


@given(messages())
def test_the_largest_message_is_room_for_every_message(message):
    shapes, _, words, arrays = message
    function = task(takes="x y", gives=" ".join(words))(lambda client, x, y: ())
    assert 8 * HEADER_WORDS + 8 * sum(a.size for a in arrays) <= shapes.largest([function])


def test_payloads_are_aligned_for_vector_loads():
    assert 8 * HEADER_WORDS % 64 == 0


# What is refused


@given(messages(), st.integers(0, 7), st.integers(1, 255))
def test_a_message_with_another_beginning_is_refused(message, place, change):
    buffer, size = packed(message[3])
    buffer.view(np.uint8)[place] ^= change
    with pytest.raises(ValueError, match="not of this version"):
        unpack(buffer, size)


@given(messages(), st.integers(-400, 400).filter(bool))
def test_a_message_shorter_or_longer_than_it_says_is_refused(message, difference):
    buffer, size = packed(message[3], room=64)
    with pytest.raises(ValueError, match="bytes"):
        unpack(buffer, size + difference)


@given(messages(), INT64)
def test_a_message_that_lies_about_its_length_is_refused(message, length):
    buffer, size = packed(message[3])
    if length == buffer.view(np.int64)[4]:
        return
    buffer.view(np.int64)[4] = length
    with pytest.raises(ValueError, match="bytes"):
        unpack(buffer, size)


@given(st.binary(min_size=8 * HEADER_WORDS, max_size=8 * HEADER_WORDS + 256))
def test_noise_is_refused(noise):
    buffer = np.frombuffer(noise[: len(noise) // 8 * 8]).copy()
    with pytest.raises(ValueError, match="message"):
        unpack(buffer, len(noise))


@given(messages(), st.integers(-5, 5).filter(bool))
def test_a_payload_that_does_not_fit_its_declaration_is_refused(message, difference):
    shapes, client, words, _ = message
    layout = shapes.layout(words, client)
    found = layout.numbers + (difference if layout.numbers + difference >= 0 else -difference)
    with pytest.raises(ValueError, match="expected"):
        split(np.zeros(found), layout)


def test_a_message_larger_than_its_buffer_is_refused():
    with pytest.raises(ValueError):
        pack(empty_buffer(8 * (HEADER_WORDS + 3)), 0, 0, 0, [np.ones(4)])


def test_an_unknown_word_is_an_error_in_the_declaration():
    with pytest.raises(KeyError):
        Shapes([slice(0, 2)], 2, 2, 2).layout(("z",), 0)


# What the sources promise

SOURCES = sorted({path.resolve() for folder in ("fbompi", "kernels") for path in (ROOT / folder).rglob("*.py")})
PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
PICKLING_CALLS = {  # the lower-case methods of mpi4py, which pickle what they send
    "send", "bsend", "ssend", "isend", "ibsend", "issend", "recv", "irecv", "sendrecv", "mprobe", "improbe", "bcast",
    "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan", "ibcast", "igather",
}  # fmt: skip


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, also inside functions and by name."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {str(a.value).partition(".")[0] for a in node.args if isinstance(a, ast.Constant)}
    return found


def test_the_sources_are_all_looked_at():
    assert {ROOT / "fbompi/links/mpi.py", ROOT / "kernels/__init__.py"} <= set(SOURCES)


def test_nothing_is_ever_pickled():
    for path in SOURCES:
        assert not imported(path) & PICKLERS, path
        for node in nodes(path):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and node.attr in PICKLING_CALLS:
                assert "comm" not in ast.unparse(node.value).lower(), f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_mpi_is_used_in_one_file_only():
    assert [path for path in SOURCES if "mpi4py" in imported(path)] == [ROOT / "fbompi/links/mpi.py"]


@given(st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_a_mask_comes_out_as_it_went_in(n: int, seed: int) -> None:
    held = np.random.default_rng(seed).random(n) < 0.5
    numbers = pack_mask(held)
    assert numbers.shape == (mask_size(n),) and unpack_mask(numbers, n).tolist() == np.flatnonzero(held).tolist()


@given(st.integers(0, 7), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_parts_of_any_length_come_out_as_they_went_in(of_x: int, of_y: int, seed: int) -> None:
    shapes, words = Shapes([slice(0, 7)], 7, 5, 0), ("part_x", "1", "part_y")
    rng, layout = np.random.default_rng(seed), shapes.layout(words, 0)
    arrays = [rng.standard_normal(of_x), rng.standard_normal(1), rng.standard_normal(of_y)]
    buffer, size = packed(framed(arrays, layout))
    assert bits(split(unpack(buffer, size)[1], layout)) == bits(arrays)
    assert size == 8 * (HEADER_WORDS + 2 + of_x + 1 + of_y)


@pytest.mark.parametrize("lengths", [[8.0, 0.0], [-1.0, 0.0], [1.5, 0.0], [np.nan, 0.0], [1.0, 6.0], [3.0, 3.0]])
def test_parts_longer_than_x_or_y_or_than_the_message_are_refused(lengths: list[float]) -> None:
    layout = Shapes([slice(0, 7)], 7, 5, 0).layout(("part_x", "part_y"), 0)
    with pytest.raises(ValueError, match="a payload"):
        split(np.array([*lengths, 1.0, 2.0]), layout)
