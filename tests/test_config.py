"""A configuration is checked key by key, completed with defaults, and repeats itself from its own text."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fbompi import cli, registry
from fbompi.algorithms.method import ANYONE
from fbompi.config import SECTIONS, Config, Key, _members, keys_of, load, resolve, tomllib
from fbompi.errors import UserError


def refusal(tables: dict[str, Any]) -> str:
    """What is said of a configuration that must be refused."""
    with pytest.raises(UserError) as refused:
        resolve(tables, "bad.toml")
    return str(refused.value)


def written(folder: Path, content: str | bytes, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Defaults


def test_without_a_word_there_is_a_whole_configuration():
    config = load(None)
    assert (config.run.algorithm, config.run.problem, config.run.link) == ("afbo", "hypercleaning", "auto")
    assert config.clients.count == "auto"
    assert config.algorithm == registry.algorithm("afbo").Parameters()
    assert config.problem["corruption"] == 0.4


def test_an_empty_file_and_empty_tables_are_the_default(tmp_path):
    assert load(written(tmp_path, "")) == load(None)
    assert resolve({name: {} for name in ("run", "problem", "clients", "algorithm", "delays", "record")}) == load(None)


def test_what_is_given_stays_and_the_rest_is_default():
    config = resolve({"run": {"rounds": 7, "algorithm": "fedmbo"}, "clients": {"participation": 0.5}})
    assert (config.run.rounds, config.run.seed, config.clients.participation) == (7, 0, 0.5)
    assert config.algorithm == registry.algorithm("fedmbo").Parameters()


def test_a_whole_number_is_a_number():
    mean = resolve({"delays": {"mean": 2}}).delays.mean
    assert mean == 2.0 and type(mean) is float


def test_two_configurations_do_not_share_their_tables():
    first, second = load(None), load(None)
    first.problem["train"], first.run.rounds = 1, 1
    assert second == load(None)


# Mistakes

NEAREST = [
    ({"run": {"round": 1}}, "run.round", '"rounds"'),
    ({"clients": {"localsteps": 1}}, "clients.localsteps", '"local_steps"'),
    ({"algorithm": {"quorom": 1}}, "algorithm.quorom", '"quorum"'),
    ({"problem": {"coruption": 0.1}}, "problem.coruption", '"corruption"'),
    ({"delays": {"zzz": 1}}, "delays.zzz", "known: compute, factor, inject"),
    ({"recrod": {}}, "[recrod]", '"record"'),
    ({"qqq": {}}, "[qqq]", "known: algorithm, clients"),
    ({"run": {"algorithm": "afb0"}}, "afb0", '"afbo"'),
    ({"run": {"algorithm": "AFBO"}}, "AFBO", "afbo"),
    ({"run": {"algorithm": "zzz"}}, "zzz", "known: adbo, afbo"),
    ({"run": {"problem": "quadratc"}}, "quadratc", '"quadratic"'),
    ({"run": {"problem": "zzz"}}, "zzz", "known: datacleaning, fewshot"),
    ({"run": {"algorithm": "fedmbo"}, "algorithm": {"inner_bound": 1}}, "algorithm.inner_bound", "inner_rounds"),
]


@pytest.mark.parametrize(("tables", "found", "meant"), NEAREST, ids=[case[1] for case in NEAREST])
def test_an_unknown_name_is_told_with_the_nearest_known_one(tables, found, meant):
    text = refusal(tables)
    assert found in text and meant in text


WRONG = [
    ("run", "rounds", "many", "a whole number, at least 1"),
    ("run", "rounds", 1.5, "a whole number"),
    ("run", "rounds", True, "a whole number"),
    ("run", "rounds", 0, "at least 1"),
    ("run", "rounds", [3], "a whole number"),
    ("run", "rounds", {"of": 3}, "a whole number"),
    ("run", "seed", -1, "at least 0"),
    ("run", "algorithm", 3, "a text"),
    ("run", "link", "tcp", '"auto" or "mpi" or "virtual"'),
    ("run", "link", True, '"auto" or "mpi" or "virtual"'),
    ("clients", "count", 0, 'a whole number or "auto", at least 1'),
    ("clients", "count", "all", 'a whole number or "auto"'),
    ("clients", "local_steps", [0, 2], "at least 1"),
    ("clients", "local_steps", [1, True], "list of whole numbers"),
    ("clients", "local_steps", [1, 2.5], "list of whole numbers"),
    ("clients", "local_steps", [], "[low, high]"),
    ("clients", "local_steps", [1, 2, 3], "[low, high]"),
    ("clients", "local_steps", [3, 2], "[low, high]"),
    ("clients", "participation", 0.0, "above 0, at most 1"),
    ("clients", "participation", 1.5, "at most 1"),
    ("clients", "replacement", 1, "true or false"),
    ("clients", "replacement", "true", "true or false"),
    ("delays", "mean", "slow", "a number, at least 0"),
    ("delays", "mean", True, "a number"),
    ("delays", "mean", -0.1, "at least 0"),
    ("delays", "tail", 1.0, "above 1"),
    ("delays", "model", "uniform", '"exponential"'),
    ("record", "every", 0, "at least 1"),
    ("algorithm", "quorum", -1, "at least 0"),
    ("algorithm", "step_x", 0.0, 'a number or "auto", above 0'),
    ("algorithm", "step_x", "fast", 'a number or "auto"'),
    ("problem", "corruption", 1.1, "at most 1"),
    ("problem", "data", 3, "a text"),
]


@pytest.mark.parametrize(("section", "key", "value", "expected"), WRONG, ids=[f"{s}.{k}={v}" for s, k, v, _ in WRONG])
def test_a_wrong_value_is_told_with_file_key_value_and_what_was_expected(section, key, value, expected):
    text = refusal({section: {key: value}})
    assert text.startswith("bad.toml: ") and f"{section}.{key}" in text and expected in text
    assert repr(value) in text


FLOATS = [(section, k.name) for section, c in SECTIONS.items() for k in keys_of(c).values() if k.type is float]
FLOATS += [("algorithm", "step_x"), ("algorithm", "decay"), ("problem", "ridge"), ("problem", "corruption")]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(("section", "key"), FLOATS, ids=[".".join(key) for key in FLOATS])
def test_numbers_must_be_finite(tmp_path, section, key, value):
    path = written(tmp_path, f"[{section}]\n{key} = {value}\n")
    with pytest.raises(UserError, match=rf"{section}\.{key} = .*expected a number"):
        load(path)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("how", ["file", "option"])
def test_a_number_too_large_for_any_machine_is_refused(tmp_path, how, digits):
    number = "1" + digits * "0"
    path = written(tmp_path, f"[delays]\nmean = {number}\n") if how == "file" else None
    with pytest.raises(UserError):
        load(path, [] if path else [f"delays.mean={number}"])


@pytest.mark.parametrize("value", [3, "text", True, [1], [{"rounds": 3}]])
@pytest.mark.parametrize("section", ["run", "problem", "clients", "algorithm", "delays", "record"])
def test_a_section_must_be_a_table(section, value):
    assert f"[{section}] must be a table" in refusal({section: value})


BAD_FILES = {
    "not UTF-8": (b'[run]\nproblem = "caf\xe9"\n', "UTF-8"),
    "binary": (bytes(range(256)) * 8, "UTF-8"),
    "an ELF file": (b"\x7fELF\x02\x01\x01\x00\x00", "not valid TOML"),
    "invalid TOML": (b"[run\nrounds = 3\n", "not valid TOML"),
    "a key twice": (b"[run]\nrounds = 3\nrounds = 4\n", "not valid TOML"),
    "a bare word": (b"[run]\nproblem = quadratic\n", "line 2"),
    "endless brackets": (b"a = " + b"[" * 100_000, "not valid TOML"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_configuration_is_told_by_its_name(tmp_path, name):
    content, words = BAD_FILES[name]
    with pytest.raises(UserError) as refused:
        load(written(tmp_path, content, "odd.toml"))
    assert "odd.toml" in str(refused.value) and words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "words"), [("nowhere.toml", "No such file"), (".", "directory"), (300 * "a", "long")])
def test_a_file_that_cannot_be_read_is_told_by_its_name(tmp_path, name, words):
    with pytest.raises(UserError, match=f"cannot be read: .*{words}"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    ['[run]\nalgorithm = "afb0"', '[run]\nproblem = "zzz"', "[clients]\nlocal_steps = [3, 2]", "[algorithm]\nK = 1"],
    ids=["method", "problem", "range", "key"],
)
def test_every_mistake_in_a_file_is_told_with_the_name_of_the_file(tmp_path, content):
    with pytest.raises(UserError, match=r"odd\.toml"):
        load(written(tmp_path, content, "odd.toml"))


def test_a_mistake_in_an_option_is_not_blamed_on_the_file(tmp_path):
    with pytest.raises(UserError) as refused:
        load(written(tmp_path, "[run]\nrounds = 3\n", "good.toml"), ["run.round=5"])
    assert "good.toml" not in str(refused.value)


# Options


@pytest.mark.parametrize("option", ["", "=", "run", "run.rounds", "rounds=3", "run.=3", ".=", "run=3"])
def test_an_option_needs_section_key_and_value(option):
    with pytest.raises(UserError, match=r"expected section\.key=value"):
        load(None, [option])


def test_an_option_overrules_the_file_and_a_later_option_an_earlier_one(tmp_path):
    path = written(tmp_path, "[run]\nrounds = 3\nseed = 4\n")
    config = load(path, ["run.rounds=5", "run.rounds=6"])
    assert (config.run.rounds, config.run.seed) == (6, 4)


def test_the_value_of_an_option_is_toml_or_a_bare_word():
    config = load(None, ["run.problem=quadratic", 'run.algorithm="afbo"', "clients.local_steps=[1, 3]",
                         "record.metrics=false", "delays.mean=1e-3", "run.out=a=b.h5", "run.seed = 5"])  # fmt: skip
    assert (config.run.problem, config.run.algorithm, config.run.out) == ("quadratic", "afbo", "a=b.h5")
    assert (config.clients.local_steps, config.record.metrics) == ([1, 3], False)
    assert (config.delays.mean, config.run.seed) == (1e-3, 5)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
@example("😀.h5")
@example(' "quoted" \\.h5 ')
@example("\x7f\n")
def test_a_run_file_may_have_any_name(name):
    shown = CliRunner().invoke(cli.fbompi, ["run", "--show-config", f"--out={name}"])
    assert shown.exception is None
    assert tomllib.loads(shown.output)["run"]["out"] == name


# Text and back


def values(key: Key) -> st.SearchStrategy:
    """Every value that a key allows."""
    low = max([b.bound for b in key.bounds if type(b).__name__ in ("AtLeast", "Above")], default=None)
    high = min([b.bound for b in key.bounds if type(b).__name__ == "AtMost"], default=None)
    above = any(type(b).__name__ == "Above" for b in key.bounds)
    whole = st.integers(low, 10**9 if high is None else int(high))
    kinds = {
        int: whole,
        float: st.floats(low, high, exclude_min=above, allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),  # what can name a file
    }
    members = []
    for member in _members(key.type):
        if get_origin(member) is Literal:
            members.append(st.sampled_from(get_args(member)))
        elif get_origin(member) is list:
            number = kinds[get_args(member)[0]]
            members.append(st.tuples(number, number).map(sorted))
        else:
            members.append(kinds[member])
    return st.one_of(members)


def some_of(keys: dict[str, Key]) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional={name: values(key) for name, key in keys.items()})


@st.composite
def valid_tables(draw: st.DrawFn) -> dict[str, dict]:
    """Tables with any of the keys there are, at any of the values they allow."""
    algorithm = draw(st.sampled_from(sorted(registry.algorithms())))
    problem = draw(st.sampled_from(sorted(registry.problems())))
    tables = {name: draw(some_of(keys_of(section))) for name, section in SECTIONS.items()}
    used = ("count", *ANYONE, *registry.algorithm(algorithm).client_keys)
    tables["clients"] = {key: value for key, value in tables["clients"].items() if key in used}
    keys = tables["clients"]
    if {"stay", "away"} & keys.keys():
        keys["presence"] = "anarchic"
        keys.pop("schedule", None)
    elif "schedule" in keys:
        keys["presence"] = "schedule"
    if "clip" in keys:
        keys["aggregate"] = "clip"
        keys.pop("trim", None)
    elif "trim" in keys:
        keys["aggregate"] = "trimmed"
    if "steps_by" in keys:
        keys["local_steps"] = [1, 2]
    tables["run"] |= {"algorithm": algorithm, "problem": problem}
    tables["algorithm"] = draw(some_of(keys_of(registry.algorithm(algorithm).Parameters)))
    tables["problem"] = draw(some_of(keys_of(registry.problem(problem))))
    return tables


@given(valid_tables())
@settings(max_examples=50)
def test_a_configuration_repeats_itself_from_its_text(tables):
    config = resolve(tables)
    assert resolve(tomllib.loads(config.text())) == config
    for name, table in tables.items():
        whole = asdict(config)[name]
        assert {key: whole[key] for key in table} == table


@given(valid_tables())
@settings(max_examples=50)
def test_files_and_options_give_the_same(tables):
    lines = {f"{name}.{key}": tomli_w.dumps({"v": value}) for name, t in tables.items() for key, value in t.items()}
    given_as_options = [f"{name}={line.removeprefix('v = ').rstrip()}" for name, line in lines.items()]
    assert load(None, given_as_options) == resolve(tables)


def test_the_configuration_shown_is_a_configuration_file(here, tmp_path):
    first = here("run", "--show-config", "-o", "run.problem=quadratic", "-o", "delays.mean=0.1", "--out", "a b.h5")
    assert first.status == 0 and first.err == ""
    path = written(tmp_path, first.out)
    again = here("run", "--show-config", path)
    assert again.status == 0 and again.out == first.out
    assert load(path).run.out == "a b.h5"


def test_a_default_of_none_in_a_users_problem_is_no_obstacle(tmp_path):
    path = written(tmp_path, "class P:\n    def __init__(self, file=None, size=3): ...\n", "mine.py")
    config = resolve({"run": {"problem": f"{path}:P"}})
    assert resolve(tomllib.loads(config.text())).problem.get("file") is None
    assert resolve(tomllib.loads(config.text())).problem["size"] == 3


def test_a_users_problem_may_take_any_parameters(tmp_path):
    path = written(tmp_path, "class P:\n    def __init__(self, **parameters): ...\n", "any.py")
    given_ = {"depth": 3, "names": ["a"], "deep": {"er": 1.5}}
    config = resolve({"run": {"problem": f"{path}:P"}, "problem": given_})
    assert resolve(tomllib.loads(config.text())).problem == given_


# Whatever is written, the answer is a configuration or one clear line

NAMES = sorted({"run", "problem", "clients", "algorithm", "delays", "record", "rounds", "count", "local_steps", "mean",
                "link", "out", "trace", "step_x", "quorum", "dim_x", "seed", "participation"})  # fmt: skip
SCALARS = st.one_of(
    st.booleans(), st.integers(), st.integers(-(10**400), 10**400), st.floats(), st.text(max_size=12), st.datetimes(),
    st.dates(), st.times(), st.sampled_from(["auto", "afbo", "quadratic", "virtual", "a.py:B", "/:x", 300 * "x" + ":"]),
)  # fmt: skip
TABLES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=4),
    max_leaves=12,
)


def answered(ask: Any, *arguments: Any) -> None:
    """A configuration, or one clear line; anything else is an error of ours."""
    try:
        assert isinstance(ask(*arguments), Config)
    except UserError as e:
        assert str(e) and "\n" not in str(e) and "\r" not in str(e), repr(str(e))


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), TABLES, max_size=5))
@settings(max_examples=200)
def test_any_tables_are_a_configuration_or_one_clear_line(tables):
    answered(resolve, tables)


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), TABLES)
@settings(max_examples=200)
@example("run", "algorithm", "a\nb")
@example("run", "problem", "x" * 300 + ".py:Class")
@example("delays", "mean", 10**400)
@example("run", "a\nb", 1)
def test_any_value_of_any_key_is_a_configuration_or_one_clear_line(section, key, value):
    answered(resolve, {section: {key: value}})


@given(st.text() | st.builds("{}.{}={}".format, st.sampled_from(NAMES), st.sampled_from(NAMES), st.text()))
def test_any_option_is_a_configuration_or_one_clear_line(option):
    answered(load, None, [option])


@given(st.binary() | st.text().map(str.encode))
def test_any_file_is_a_configuration_or_one_clear_line(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    answered(load, path)


@given(st.data())
def test_a_damaged_file_is_a_configuration_or_one_clear_line(tmp_path_factory, data):
    content = bytearray(load(None).text().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    path.write_bytes(content)
    answered(load, path)


def test_every_key_says_what_it_means_and_what_it_expects():
    sections = [*SECTIONS.values(), *(a.Parameters for a in registry.algorithms().values())]
    for section in [*sections, *(registry.problem(name) for name in registry.problems())]:
        for key in (keys_of(section) or {}).values():
            assert key.meaning and key.expected(), (section, key.name)
            assert json.dumps(key.default)  # and has a default that a file can hold


@pytest.mark.skipif(sys.platform == "win32", reason="names of files are bytes on POSIX only")
def test_an_option_that_is_not_text_is_refused(here, tmp_path):
    result = here("run", "-o", "run.rounds=1", "-o", "run.out=a\udcff.h5")
    assert result.status == 2 and result.err.startswith("fbompi: ") and result.err.count("\n") == 1, result
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method, key", [("afbo", "capacity=0.5"), ("fedmbo", "local_steps=3")])
def test_a_key_that_a_method_does_not_use_is_refused(method: str, key: str) -> None:
    with pytest.raises(UserError, match=f"clients.{key.split('=')[0]} = .*{method} does not use it"):
        load(None, [f"run.algorithm={method}", f"clients.{key}"])
