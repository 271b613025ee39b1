"""Fuzzing of everything that reads input, led by coverage: ``python tests/fuzz.py config --minutes 10``.

It takes Atheris (``pip install atheris``), which a run or the tests do not need. Inputs are made from good ones by
Atheris's changes of bytes and by changes that know the form (`hostile`). Every finding is kept, with the input that
led to it, and one input can be fed again: ``python tests/fuzz.py config --replay FILE``. The status is 1 if there are
findings of ours; what kills or holds up HDF5 itself is counted apart.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pkgutil
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLOWEST = 10  # seconds that one input may take
MOST_MEMORY = 1 << 30  # bytes beyond those of the libraries
TARGETS = ("config", "data", "inspect", "resume", "replay", "messages")  # of `hostile.targets`
NOT_ALONE = " not again"  # what damaged bytes, or the fuzzer, did to a process that went on
IN_HDF5 = " in HDF5"  # which damaged bytes can kill, or keep for ever; nothing in Python can be done about it


def main() -> int:
    arguments = parsed()
    if arguments.replay:
        return replay(arguments.target, arguments.replay)
    if arguments.inputs:
        return steady(arguments.target, arguments.inputs, arguments.seed)
    if arguments.work:
        fuzz(arguments.target, arguments.work, arguments.minutes, arguments.seed)
    return watched(arguments.target, arguments.minutes, arguments.seed)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, help="feed so many instead, the same for a seed, without Atheris")
    parser.add_argument("--replay", type=Path, help="feed this one file and print what comes of it")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)  # the process that does it
    return parser.parse_args()


def replay(name: str, file: Path) -> int:
    """Feed one input."""
    import faulthandler

    from hostile.targets import TARGETS
    from hostile.watch import finding

    faulthandler.enable()
    target, data = TARGETS[name], file.read_bytes()
    with tempfile.TemporaryDirectory() as place:
        finding(target, target.seeds()[0], Path(place))  # loads what is loaded late
        faulthandler.dump_traceback_later(SLOWEST, exit=True)
        begin = time.perf_counter()
        found = finding(target, data, Path(place))
        seconds = time.perf_counter() - begin
        os.chdir("/")
    print(f"{seconds:.2f} s:", f"{found.what} {found.where}\n{found.details}" if found else "is fine")
    return int(found is not None)


def steady(name: str, inputs: int, seed: int) -> int:
    """Feed inputs that depend on the seed alone."""
    import faulthandler

    from hostile.targets import TARGETS
    from hostile.watch import finding

    faulthandler.enable()
    warnings.simplefilter("ignore")
    target, found = TARGETS[name], {}
    with tempfile.TemporaryDirectory() as place:
        for good in target.seeds():
            finding(target, good, Path(place))  # what is loaded late is loaded now
        for number in range(inputs):
            rng = random.Random(f"{seed} {number}")
            data = target.changed(rng.choice(target.seeds()), rng)
            faulthandler.dump_traceback_later(2 * SLOWEST, exit=True)
            one = finding(target, data, Path(place))
            faulthandler.cancel_dump_traceback_later()
            if one:
                found.setdefault((one.what, one.where), f"input {number}: {one.what} {one.where}\n{one.details}")
        os.chdir("/")
    print(f"{name}: {inputs} inputs, {len(found)} distinct findings", *found.values(), sep="\n")
    return int(bool(found))


def watched(name: str, minutes: float, seed: int) -> int:
    """Fuzz in a process of its own, again whenever that is killed by what it reads; the status."""
    findings = Path.cwd() / f"findings-{name}"
    findings.mkdir(exist_ok=True)
    begin, log = time.monotonic(), ""
    inputs, coverage, deaths = 0, [], {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as work:
        restarts = 0
        while (left := minutes * 60 - (time.monotonic() - begin)) > 5:
            command = [sys.executable, __file__, name, "--work", work, "--minutes", str(left / 60),
                       "--seed", str(seed + restarts)]  # fmt: skip
            with open(Path(work, "log"), "w+b") as told:
                status = subprocess.call(command, stdout=told, stderr=told)
            log = Path(work, "log").read_text(errors="replace")
            inputs += max(map(int, re.findall(r"^#(\d+)\s", log, re.M)), default=0)
            coverage += map(int, re.findall(r"INITED cov: (\d+)", log)[:1] + re.findall(r" cov: (\d+)", log)[-1:])
            if status == 0:
                break
            restarts += 1
            where = _dead(name, Path(work), findings, log)
            if not where:
                print(log[-3000:], file=sys.stderr)
                return 3
            deaths.setdefault(where, 0)
            deaths[where] += 1
        kept, alone = _kept(name, Path(work, "findings"), findings)
    inside = {where: n for where, n in deaths.items() if where.endswith(IN_HDF5)}
    passing = {where: n for where, n in deaths.items() if where.endswith(NOT_ALONE)}
    ours = {where: n for where, n in deaths.items() if where not in inside and where not in passing}
    print(
        f"{name}: {inputs:,} inputs in {(time.monotonic() - begin) / 60:.1f} minutes, coverage "
        f"{coverage[0] if coverage else 0} at the good inputs, {max(coverage, default=0)} at the end; "
        f"{alone} distinct findings, {len(ours)} places of deaths or hangs {ours or ''}, in {findings}; "
        f"{sum(inside.values())} deaths or hangs inside of the HDF5 library {inside or ''}; "
        f"{kept - alone} findings and {sum(passing.values())} deaths in a process that earlier inputs had damaged: "
        "fed alone, the input does no harm"
    )
    return int(alone + len(ours) > 0)


def _dead(name: str, work: Path, findings: Path, log: str) -> str:
    """Keep the input that killed the process, and tell where; nothing where there is none, as it did not begin."""
    for artifact in [path for path in work.iterdir() if path.name.startswith(("crash-", "timeout-", "oom-"))]:
        (findings / artifact.name).write_bytes(artifact.read_bytes())
        artifact.unlink()
        again = _alone(name, findings / artifact.name)
        (findings / f"{artifact.name}.txt").write_text(again.stdout + again.stderr + log[-1000:])
        frames = re.findall(r'File "[^"]*?([\w.]+/[\w.]+)", line (\d+)', again.stderr)
        inside = next((":".join(f) for f in frames if f[0].startswith(("h5py", "_hl"))), "")
        ours = next((":".join(f) for f in frames if f[0].startswith(("fbompi", "data", "links"))), "")
        what = artifact.name.partition("-")[0]
        return f"{what}{NOT_ALONE}" if again.returncode == 0 else f"{what} at {ours}{IN_HDF5 if inside else ''}"
    return ""


def _kept(name: str, made: Path, findings: Path) -> tuple[int, int]:
    """Keep what was found; how many, and how many of these are found again when their input is fed alone."""
    paths = sorted(made.iterdir()) if made.is_dir() else []
    for path in paths:
        (findings / path.name).write_bytes(path.read_bytes())
    inputs = [findings / path.name for path in paths if path.suffix == ".input"]
    return len(inputs), sum(_alone(name, path).returncode != 0 for path in inputs)


def _alone(name: str, path: Path) -> subprocess.CompletedProcess:
    """Feed an input in a process of its own."""
    command = [sys.executable, __file__, name, "--replay", str(path)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def fuzz(name: str, work: Path, minutes: float, seed: int) -> None:
    """Feed one target until the time is over; never returns."""
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    try:
        import atheris
    except ImportError:
        sys.exit("fuzzing takes Atheris: pip install atheris")
    kernels = [f"fbompi.kernels.{m.name}" for m in pkgutil.walk_packages([str(ROOT / "kernels")])]
    with atheris.instrument_imports(include=["fbompi"], exclude=["fbompi.kernels", *kernels]):
        from hostile.content import bytes_changed
        from hostile.targets import TARGETS as targets
        from hostile.watch import finding

        from fbompi import registry

        registry.algorithms(), registry.problems()
    target, seen, place = targets[name], set(), work / "place"
    place.mkdir(exist_ok=True)
    (work / "findings").mkdir(exist_ok=True)
    corpus = work / "corpus"
    corpus.mkdir(exist_ok=True)
    for good in target.seeds():
        (corpus / hashlib.sha256(good).hexdigest()).write_bytes(good)
        finding(target, good, place)  # what is loaded late is loaded before memory is limited

    def feed(data: bytes) -> None:
        found = finding(target, data, place)
        if found and (found.what, found.where) not in seen:
            seen.add((found.what, found.where))
            stem = work / "findings" / re.sub(r"\W+", "-", f"{found.what} {found.where}")[:80]
            stem.with_suffix(".input").write_bytes(data)
            stem.with_suffix(".txt").write_text(f"{found.what} {found.where}\n{found.details}", errors="replace")

    def changed(data: bytes, longest: int, chance: int) -> Any:
        rng = random.Random(chance)
        if rng.random() < 0.25:
            return atheris.Mutate(data, longest)
        try:
            return target.changed(bytes(data), rng)[:longest]
        except Exception:  # libraries that cannot write what is asked for
            return bytes_changed(bytes(data), rng)[:longest]

    used = int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
    longest = 1 << (20 if name in ("inspect", "resume", "replay") else 16)
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={max(1, int(minutes * 60))}", f"-seed={seed}",
         f"-timeout={SLOWEST}", "-rss_limit_mb=0", f"-max_len={longest}", f"-artifact_prefix={work}/",
         "-len_control=0"],
        feed, custom_mutator=changed,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
