"""Libraries that are loaded before the C library's own functions, to let a real process meet a rare system."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def built(name: str, source: str, folder: Path) -> dict[str, str]:
    """The environment in which a process meets it; skips the test where there is no compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc to build a library with")
    file, library = folder / f"{name}.c", folder / f"{name}.so"
    file.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, file, "-ldl"], check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}
