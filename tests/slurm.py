"""A Slurm of the tests' own: its three daemons on this machine, with one node of more CPUs than there are."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")
CPUS = 16
LONGEST = 90  # characters of a socket's path, about
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")  # of Debian, whose srun asks for a name that only libpmix-dev has

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2
JobRequeue=1
MinJobAge=3600
KillWait=10
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Slurm:
    """One that is up; `environment` is that of its users."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}

    def start(self) -> None:
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (self.place / name).mkdir()
        text = CONFIGURATION.format(host=host, place=self.place, ports=free_ports(2), cpus=CPUS)
        (self.place / "slurm.conf").write_text(text)
        key = self.place / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log",
                 "seed-file": "munge.seed"}  # fmt: skip
        self._do("munged", "--force", *(f"--{name}={self.place / file}" for name, file in files.items()))
        for daemon in DAEMONS[1:]:
            self._do(daemon, "-f", str(self.place / "slurm.conf"))
        self.wait("the node to be idle", lambda: self.ask("sinfo", "-h", "-o", "%T") == "idle")

    def stop(self) -> None:
        self._do("scancel", "--user=root")
        for daemon in reversed(DAEMONS):
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.place / f"{daemon}.pid").read_text())
                os.kill(pid, signal.SIGTERM)
                self.wait(f"{daemon} to end", lambda pid=pid: not Path(f"/proc/{pid}").exists())

    def ask(self, *words: str) -> str:
        """What a command of Slurm says."""
        return self._do(*words).strip()

    def state(self, job: str) -> str:
        """Of a job, or of an array's jobs together: one word if they agree."""
        states = self.ask("squeue", "-h", "-t", "all", "-r", "-j", job, "-o", "%T").split()
        return " ".join(sorted(set(states)))

    def figure(self, job: str, name: str) -> str:
        """What `scontrol show job` has under this name."""
        shown = self.ask("scontrol", "-o", "show", "job", job)
        return next(word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}="))

    def ended(self, jobs: Sequence[str], seconds: float = 120) -> list[str]:
        """The states of jobs that have ended. Slurm lets a job that is queued again wait for two minutes; after some
        seconds, in which the processes of its last start end, that is cut short."""
        since: dict[str, float] = {}

        def over() -> bool:
            for job in jobs:
                if self.ask("squeue", "-h", "-j", job, "-t", "PENDING", "-o", "%r") != "BeginTime":
                    since.pop(job, None)
                elif time.monotonic() - since.setdefault(job, time.monotonic()) > 4:
                    self.ask("scontrol", "update", f"jobid={job}", "StartTime=now")
            return not any(self.ask("squeue", "-h", "-j", job, "-o", "%T") for job in jobs)

        self.wait(f"jobs {', '.join(jobs)} to end", over, seconds)
        return [self.state(job) for job in jobs]

    def wait(self, what: str, holds, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"waited {seconds} s for {what}\n{self.ask('squeue')}"
            time.sleep(0.3)

    def _do(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, cwd=self.place, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def obstacle(place: Path) -> str:
    """Why there can be no Slurm here; empty, if there can."""
    if missing := [daemon for daemon in DAEMONS if shutil.which(daemon) is None]:
        return f"{missing[0]} is not installed (Debian: slurm-wlm munge libpmix2)"
    if os.geteuid():
        return "its daemons want to be root here"
    if len(str(place)) > LONGEST:
        return f"{place}: too long for a socket"
    try:
        socket.gethostbyname(socket.gethostname().partition(".")[0])
    except OSError:
        return "this machine's own name is not known to it"
    return ""


@contextlib.contextmanager
def running(place: Path) -> Iterator[Slurm]:
    """A Slurm for as long as this context lasts; the test is skipped, with the reason, where there cannot be one."""
    if reason := obstacle(place):
        pytest.skip(f"no Slurm: {reason}")
    if (PMIX / "libpmix.so.2").exists() and not (PMIX / "libpmix.so").exists():
        (PMIX / "libpmix.so").symlink_to("libpmix.so.2")
    slurm = Slurm(place)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
