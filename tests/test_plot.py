"""Pictures show what the file has: the right numbers, its own words, and what went wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, Result, command, options
from federation import ran
from hypothesis import given
from hypothesis import strategies as st

from fbompi.activity import Activity, activity
from fbompi.axes import AXES, scale
from fbompi.errors import UserError
from fbompi.plots.figure import line, names
from fbompi.runs import Run

pytest.importorskip("matplotlib")

from fbompi.plots import curves, partition, staleness, timeline
from fbompi.plots.kinds import KINDS, plot

GARBAGE = """
import numpy as np
from fbompi.problems.quadratic import Quadratic

class Garbage(Quadratic):
    def shard(self, client, clients):
        shard = super().shard(client, clients)
        shard.bad = client == 2
        return shard

    def lower_grad(self, shard, x, y, batch=None):
        found = super().lower_grad(shard, x, y, batch)
        return found * np.nan if shard.bad else found
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of several kinds."""
    folder = tmp_path_factory.mktemp("runs")
    few = options(run_rounds=8, record_every=2, clients_count=5)
    found = {
        "cleaning": ran(folder / "cleaning.h5", *few),
        "quadratic": ran(folder / "quadratic.h5", *few, *options(run_problem="quadratic", run_algorithm="fedmbo")),
        "location": ran(folder / "location.h5", *few, *options(run_problem="location", run_algorithm="fism")),
    }
    (folder / "garbage.py").write_text(GARBAGE)
    troubled = options(run_problem=f"{folder}/garbage.py:Garbage", delays_stragglers=1, delays_compute=0.2)
    return {**found, "garbage": ran(folder / "garbage.h5", *few, *troubled)}


def words(path: Path) -> str:
    """The text of an SVG file, a line per element."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"), re.S)
    return "\n".join(re.sub(r"<[^>]*>|\s+", " ", text).strip() for text in found)


@pytest.fixture
def drawn(files: dict[str, Path], tmp_path: Path) -> Callable[..., str]:
    """Draw runs, and return the words in the picture."""

    def draw(*which: str, kind: str = "overview", against: str = "round", metric: str = "") -> str:
        plot([files[name] for name in which], kind, against, metric, tmp_path / "out.svg")
        return words(tmp_path / "out.svg")

    return draw


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("count", [1, pytest.param(9, marks=pytest.mark.slow)])  # more than there are colours
def test_every_kind_is_drawn_of_one_run_and_of_many(
    files: dict[str, Path], tmp_path: Path, kind: str, count: int
) -> None:
    plot([files["cleaning"]] * count, kind, "time", "", tmp_path / "out.png")
    head = (tmp_path / "out.png").read_bytes()[:24]
    wide, tall = (int.from_bytes(head[i : i + 4], "big") for i in (16, 20))
    assert head.startswith(b"\x89PNG") and wide >= 1000 and tall >= 600


def test_pdf_and_svg_are_what_they_say_and_the_same_each_time(files: dict[str, Path], tmp_path: Path) -> None:
    for ending, head in {"pdf": b"%PDF", "svg": b"<?xml"}.items():
        for name in ("a", "b"):
            plot([files["cleaning"]], "staleness", "round", "", tmp_path / f"{name}.{ending}")
        content = (tmp_path / f"a.{ending}").read_bytes()
        assert content.startswith(head) and content == (tmp_path / f"b.{ending}").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_the_overview_has_the_panels_that_apply(drawn: Callable[..., str]) -> None:
    cleaning, quadratic, location = (drawn(name) for name in ("cleaning", "quadratic", "location"))
    assert "afbo on hypercleaning: complete, 8 of 8 rounds" in cleaning
    for text in ("accuracy", "auc", "clean samples", "corrupted samples", "age of an answer", "digits: shuffled"):
        assert text in cleaning and text not in quadratic + location, text
    for page in (cleaning, quadratic, location):
        assert "task under way" in page and "outer round" in page
    assert "x_error" in quadratic and "upper" in location


def test_lines_can_be_told_apart_in_colour_and_in_grey() -> None:
    looks = [line(index) for index in range(28)]
    assert len({str(look) for look in looks}) == 28
    assert all(a["linestyle"] != b["linestyle"] and a["color"] != b["color"] for a, b in pairwise(looks))


def test_runs_that_differ_in_their_seed_look_alike(files: dict[str, Path], tmp_path: Path) -> None:
    paths = [files["quadratic"], tmp_path / "other.h5", files["garbage"]]
    shutil.copy(paths[0], paths[1])
    with h5py.File(paths[1], "r+") as file:
        file.attrs["seed"] = 1
        file.attrs["config"] = file.attrs["config"].replace("seed = 0", "seed = 1", 1)
    told = curves.told_apart([Run(path) for path in paths], ["a", "b", "c"])
    assert told == [(0, "fedmbo (2 runs)"), (0, "_"), (1, "afbo (1 run)")]
    assert curves.told_apart([Run(paths[0])] * 2, ["a", "b"]) == [(0, "a"), (1, "b")]  # no seeds to average over


def test_a_clock_that_stood_still_is_no_axis(tmp_path: Path) -> None:
    still = options(run_problem="quadratic", run_rounds=3, record_every=1, clients_count=3, delays_model="none")
    path = ran(tmp_path / "run.h5", *still)
    for kind in ("overview", "costs"):
        plot([path], kind, "round", "", tmp_path / "out.svg")
        assert "time" not in words(tmp_path / "out.svg") and "outer round" in words(tmp_path / "out.svg")
    with pytest.raises(UserError, match="no time passed on its clock"):
        plot([path], "timeline", "round", "", tmp_path / "out.svg")


def test_a_map_of_many_clients_is_shaded_and_runs_share_theirs(files: dict[str, Path], tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    table = np.random.default_rng(0).integers(0, 3, (500, 10))
    axes = Figure().subplots()
    partition.panel(axes, "rule", "train", table, partition.size(table))
    (image,) = axes.get_images()
    np.testing.assert_array_equal(image.get_array(), table.T)
    assert "the darker, the more: train samples" in axes.get_title()
    plot([files["cleaning"]] * 3, "partition", "round", "", tmp_path / "out.svg")
    assert words(tmp_path / "out.svg").count("largest") == 1


def test_labels_units_and_meanings_are_the_files_own(drawn: Callable[..., str]) -> None:
    assert "fraction of test images classified correctly" in drawn("cleaning", kind="metrics", metric="accuracy")
    assert "‖x − x*‖ / ‖x*‖" in drawn("quadratic", kind="metrics", metric="x_error")
    costs = drawn("cleaning", "quadratic", kind="costs", metric="upper")
    for text in ("outer round", "time (virtual seconds)", "bytes moved (MB)", "oracle calls (10³ samples)", "cleaning"):
        assert text in costs, text


def test_trouble_is_seen(drawn: Callable[..., str]) -> None:
    page = drawn("garbage", kind="timeline")
    assert "rejected" in page and "left out" in page and " slow" in page and "computing" in page
    assert "rejected" not in drawn("cleaning", kind="timeline")


def test_curves_have_the_numbers_of_the_file(files: dict[str, Path]) -> None:
    from matplotlib.figure import Figure

    run = Run(files["cleaning"])
    for against, (_, columns) in AXES.items():
        axes = Figure().subplots()
        curves.panel(axes, [run], ["run"], ["accuracy"], against)
        (line,) = axes.get_lines()
        with h5py.File(run.path) as file:
            total = sum(file["trajectory"][name][:].astype(float) for name in columns)
            np.testing.assert_array_equal(line.get_ydata(), file["trajectory/accuracy"][:])
        shown = np.asarray(line.get_xdata())
        np.testing.assert_allclose(shown * (total[-1] / shown[-1]), total)
        assert round(total[-1] / shown[-1]) in (1, 1e3, 1e6, 3600)


def test_a_histogram_counts_every_answer_once(files: dict[str, Path]) -> None:
    ages = Run(files["cleaning"]).arrivals["age"]
    bins = staleness.edges(ages)
    assert np.histogram(ages, bins)[0].sum() == len(ages) and ages.max() > 0
    for largest in (0, 1, 49, 50, 51, 1000):
        bins = staleness.edges(np.array([0, largest]))
        assert len(bins) <= staleness.BINS + 2 and bins[0] == -0.5 and bins[-1] > largest
        assert np.all((bins[1:] - bins[:-1]) % 1 == 0)


tasks = st.lists(st.tuples(st.integers(0, 2), st.floats(0, 9), st.floats(0, 3)), max_size=25)


@given(tasks)
def test_a_client_is_busy_while_it_has_any_task(tasks: list[tuple[int, float, float]]) -> None:
    client, sent, length = (np.array([t[i] for t in tasks]) for i in range(3))
    no: Any = np.zeros(len(tasks))
    a = Activity(3, 12.0, client, sent, sent, no, sent + length, no, no, no > 0, [], {}, {})
    places = np.linspace(0, 12, 301)
    edges = np.array([0.0, 5.0, 12.0])
    for who in range(3):
        stretches = a.under_way(who)
        busy = ((places[:, None] >= stretches[:, 0]) & (places[:, None] <= stretches[:, 1])).any(axis=1)
        mine = client == who if len(tasks) else np.zeros(0, bool)
        begin, end = sent[mine], (sent + length)[mine]
        np.testing.assert_array_equal(busy, ((places[:, None] >= begin) & (places[:, None] <= end)).any(axis=1))
        assert np.all(stretches[1:, 0] > stretches[:-1, 1])
        total = (a.share(who, edges) * np.diff(edges)).sum()
        assert total == pytest.approx((stretches[:, 1] - stretches[:, 0]).sum())


def test_the_timeline_tells_who_is_slow_left_out_and_rejected(files: dict[str, Path]) -> None:
    run = Run(files["garbage"])
    a = activity(run)
    with h5py.File(run.path) as file:
        made_slow = np.flatnonzero(file["clients"]["delay_factor"] > 1).tolist()
        bad = file["events"]["rejected"] == 1
    assert set(made_slow) <= set(a.slow) and list(a.left) == [2] and a.rejected.sum() == bad.sum() == 3
    assert np.all(a.begun >= a.sent) and np.all(a.begun + a.compute <= a.arrived + 1e-9)
    begin, end = timeline.window(a)
    assert begin <= a.arrived[a.rejected].min() <= end <= a.end


def test_where_there_are_too_many_clients_those_that_stand_out_are_shown() -> None:
    no = np.zeros(0)
    a = Activity(1000, 1.0, no, no, no, no, no, no, no, no > 0, [700], {900: 0.5}, {})
    shown = a.shown(40).tolist()
    assert len(shown) == 40 and {700, 900} <= set(shown) and shown == sorted(shown)
    a.slow = list(range(100, 900))
    shown = a.shown(40).tolist()
    assert len(shown) == 40 and 900 in shown and shown[:10] == list(range(10))  # ordinary ones to compare with


def test_chance_makes_no_stragglers(tmp_path: Path) -> None:
    keys = options(run_problem="quadratic", run_rounds=3, clients_count=100, delays_stragglers=3)
    run = Run(ran(tmp_path / "run.h5", *keys))
    assert activity(run).slow == np.flatnonzero(np.asarray(run.clients["delay_factor"]) > 1).tolist()
    run.attributes["link"] = "mpi"
    assert len(activity(run).slow) == 3  # too few answers each to add others


def test_numbers_are_scaled_to_units_that_can_be_read() -> None:
    assert scale("bytes", 4.2e6) == (1e3, "kB") and scale("bytes", 5e6) == (1e6, "MB")
    assert scale("seconds", 3000) == (1.0, "seconds") and scale("rounds", 1e9) == (1.0, "rounds")


def test_runs_are_called_by_what_tells_them_apart() -> None:
    assert names([Path("a/one.h5"), Path("b/two.h5")]) == ["one", "two"]
    assert names([Path("a/run.h5"), Path("b/run.h5")]) == ["a/run", "b/run"]
    assert len(set(names([Path("run.h5")] * 3))) == 3


def test_names_that_look_like_formulas_or_worse_are_drawn_as_they_are(files: dict[str, Path], tmp_path: Path) -> None:
    odd = [tmp_path / f"{name}.h5" for name in (r"$\frac{$", "_x$ ü 😀", "a\nb\x07", "<b>&")]
    for path in odd:
        shutil.copy(files["cleaning"], path)
        with h5py.File(path, "r+") as file:
            file["trajectory/accuracy"].attrs["meaning"] = r"$\undefined{ 100 % $ of \\"
            file["partition"].attrs["rule"] = "$"
    for which, kind in ((odd[:1], "overview"), (odd[1:2], "partition"), (odd, "costs")):
        plot(which, kind, "round", "", tmp_path / "out.svg")
    for text in ("_x$ ü", r"$\frac{$", "&lt;b&gt;&amp;", r"$\undefined{ 100 % $"):
        assert text in words(tmp_path / "out.svg"), text


def test_a_run_with_hardly_anything_in_it_is_drawn_or_refused(files: dict[str, Path], tmp_path: Path) -> None:
    for rows in (0, 1):
        shutil.copy(files["cleaning"], tmp_path / "run.h5")
        with h5py.File(tmp_path / "run.h5", "r+") as file:
            for column in file["trajectory"].values():
                column.resize(rows, axis=0)
            file["events"].resize(0, axis=0)
        if rows:
            plot([tmp_path / "run.h5"], "overview", "round", "", tmp_path / "out.png")
        else:
            with pytest.raises(UserError, match="nothing is recorded yet"):
                plot([tmp_path / "run.h5"], "overview", "round", "", tmp_path / "out.png")
        with pytest.raises(UserError, match="no answer has arrived"):
            plot([tmp_path / "run.h5"], "timeline", "round", "", tmp_path / "out.png")


def test_what_cannot_be_drawn_is_told_in_one_line(files: dict[str, Path], tmp_path: Path) -> None:
    for which, kind, metric, out, expected in (
        ("quadratic", "weights", "", "a.png", "does not weigh samples"),
        ("quadratic", "partition", "", "a.png", "no classes"),
        ("quadratic", "costs", "acuracy", "a.png", 'no metric "acuracy": it has x_error'),
        ("quadratic", "overview", "", "a.bmp", "expected a name that ends with .png, .svg or .pdf"),
        ("quadratic", "overview", "", "nowhere/a.png", "cannot be written: No such file"),
    ):
        with pytest.raises(UserError, match=re.escape(expected)) as e:
            plot([files[which]], kind, "round", metric, tmp_path / out)
        assert "\n" not in e.value.line and not list(tmp_path.iterdir())


def test_the_command_says_where_the_picture_is(files: dict[str, Path], tmp_path: Path) -> None:
    result = command("plot", files["cleaning"], "-k", "staleness", cwd=tmp_path)
    assert result.status == 0 and result.out == "cleaning-staleness.png\n", result
    assert (tmp_path / "cleaning-staleness.png").exists()


def without_matplotlib(tmp_path: Path, *arguments: Any) -> Result:
    """A command where matplotlib is not installed."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    return command(*arguments, cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")


def test_without_matplotlib_one_line_says_how_to_get_it(files: dict[str, Path], tmp_path: Path) -> None:
    for arguments in (("plot", files["cleaning"]), ("compare", files["cleaning"], "-o", "a.png")):
        result = without_matplotlib(tmp_path, *arguments)
        assert result.status == 2 and result.err.count("\n") == 1 and not list(tmp_path.glob("*.png")), result
        assert "pip install 'fbompi[plot]'" in result.err
    for arguments in (("compare", files["cleaning"]), ("report", files["cleaning"])):
        assert without_matplotlib(tmp_path, *arguments).status == 0
