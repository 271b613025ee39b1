"""Going through an experiment: pilots where keys are tuned, then all cases times seeds, as a sweep runs them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fbompi.data.store import BUILT_IN, stored
from fbompi.errors import UserError
from fbompi.reproduce.experiment import Experiment, Keys, Results, ScaleName, Tuned
from fbompi.runs import Run
from fbompi.status import COMPLETE, LOSSES
from fbompi.sweep.execution import Outcome, execute, exit_status
from fbompi.sweep.plan import Planned, planned, word_of

Tell = Callable[[int, int, Outcome], None]  # number, of how many, what became of it


@dataclass
class Execution:
    """What was run, and what it gave."""

    results: dict[str, list[Run]] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)  # tuned keys, by case
    runs: list[Path] = field(default_factory=list)
    missing: tuple[str, ...] = ()  # sets in whose place others were used
    status: int = COMPLETE
    failed: list[str] = field(default_factory=list)


def perform(experiment: Experiment, scale: ScaleName, directory: Path, ranks: int, tell: Tell) -> Execution:
    """Run what is missing of an experiment, at last all of it; files are kept in `directory`."""
    missing = missing_data(experiment, scale)
    cases = {name: _keys(experiment, scale, case, ranks) for name, case in experiment.cases(scale).items()}
    seeds, done = experiment.scale(scale).seeds, Execution(missing=missing)
    like = {name: next((v.like for v in _tuned(keys).values() if v.like), name) for name, keys in cases.items()}
    pilots = {
        (name, choice): _planned(directory, name, keys, choice, experiment.pilot)
        for name, keys in cases.items()
        for choice in _choices(keys)
        if choice and like[name] == name
    }
    total = len(pilots) + len(cases) * len(seeds)

    def run(runs: list[Planned], begin: int) -> list[Outcome]:
        outcomes = [Outcome.ahead(run, ranks) for run in runs]
        asked = execute(None, outcomes, ranks, True, lambda number, outcome: tell(begin + number, total, outcome))
        done.status, done.runs = exit_status(outcomes, asked), [*done.runs, *(run.path for run in runs)]
        done.failed = [str(o.run.path) for o in outcomes if o.words.startswith("failed")]
        return outcomes

    outcomes = dict(zip(pilots, run(list(pilots.values()), 0)))
    if any(not o.words.startswith(("complete", "failed")) for o in outcomes.values()):
        return done
    for name in dict.fromkeys(name for name, _ in pilots):  # one may fail: a step may be too long for a method
        scores: dict[tuple, float] = {
            choice: _score(experiment, Run(o.run.path))
            for (of, choice), o in outcomes.items()
            if of == name and o.words.startswith("complete")
        }
        if not scores:
            return done
        best = max(scores.items(), key=lambda pair: pair[1])[0]
        done.chosen[name] = dict(best)
    final = [
        (name, _planned(directory, name, keys, tuple(done.chosen.get(like[name], {}).items()), seed))
        for name, keys in cases.items()
        for seed in seeds
    ]
    run([planned for _, planned in final], len(pilots))
    if done.status in (COMPLETE, LOSSES):
        for name, one in final:
            done.results.setdefault(name, []).append(Run(one.path))
    return done


def missing_data(experiment: Experiment, scale: ScaleName) -> tuple[str, ...]:
    """Sets that are not there and can be done without; told where they cannot."""
    size = experiment.scale(scale)
    missing = tuple(name for name in size.data if name not in (*stored(), BUILT_IN))
    if missing and size.instead is None:
        gets = " and ".join(f"fbompi data get {name} (or fbompi data import PATH)" for name in missing)
        raise UserError(f"reproduce {experiment.name}: {', '.join(missing)} is not imported: {gets}")
    return missing


def _keys(experiment: Experiment, scale: ScaleName, case: Keys, ranks: int) -> dict[str, Any]:
    size = experiment.scale(scale)
    instead = (size.instead or {}) if missing_data(experiment, scale) else {}
    return {**experiment.keys, **size.keys, **case, **instead, **(experiment.on_ranks if ranks > 1 else {})}


def _choices(keys: Mapping[str, Any]) -> list[tuple[tuple[str, Any], ...]]:
    """All combinations of values of tuned keys; one that is empty, where there are none."""
    tuned = _tuned(keys)
    return [tuple(zip(tuned, values)) for values in itertools.product(*(value.values for value in tuned.values()))]


def _tuned(keys: Mapping[str, Any]) -> dict[str, Tuned]:
    return {key: value for key, value in keys.items() if isinstance(value, Tuned)}


def _planned(directory: Path, case: str, keys: Mapping[str, Any], choice: tuple, seed: int) -> Planned:
    told = [word_of(case), *(f"{key.partition('.')[2]}={word_of(str(value))}" for key, value in choice)]
    everything = {**keys, **dict(choice), "run.seed": seed}
    words = [(key, json.dumps(value)) for key, value in everything.items()]
    return planned(directory / f"{','.join([*told, f'seed={seed}'])}.h5", words)


def _score(experiment: Experiment, run: Run) -> float:
    score = experiment.score(run)
    return -math.inf if math.isnan(score) else score


def verdicts(experiment: Experiment, results: Results) -> list[dict[str, str]]:
    """Every claim with what became of it."""
    found = []
    for claim in experiment.claims:
        verdict = claim.judge(results)
        found.append({"claim": claim.text, "outcome": verdict.outcome, "measured": verdict.measured,
                      "sentence": verdict.sentence,
                      "reason": "" if verdict.outcome == "holds" else claim.otherwise})  # fmt: skip
    return found
