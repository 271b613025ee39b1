"""Scripts on the disk, and in Slurm's queue."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fbompi.errors import UserError


def write(scripts: Mapping[Path, str], overwrite: bool) -> None:
    """Write scripts, all or none; what somebody may have edited is not replaced."""
    for path, text in scripts.items():
        if path.exists() and not overwrite and path.read_text(errors="replace") != text:
            raise UserError(f"{path}: exists already, with another text; choose another --script or add --overwrite")
    for path, text in scripts.items():
        try:
            path.write_text(text)
            path.chmod(0o755)
        except OSError as e:
            raise UserError(f"{path}: cannot be written: {e.strerror}") from None


def submit(script: Path, after: Sequence[str] = ()) -> str:
    """Submit a script, to be run after these jobs have ended, however they did; its number."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UserError(f"there is no sbatch here: submit {script} on a machine of the cluster")
    depends = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    done = subprocess.run([sbatch, "--parsable", *depends, str(script)], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"sbatch does not take {script}: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]  # a cluster's name may follow
