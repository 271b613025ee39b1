"""Where a run file goes, and how it gets its name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fbompi.errors import UserError
from fbompi.journal import is_being_written


@dataclass(frozen=True)
class Destination:
    """Where a run file goes: to a path, or to the first free number behind a stem."""

    path: Path
    stem: str
    overwrite: bool

    @classmethod
    def choose(cls, out: str, stem: str, overwrite: bool) -> Destination:
        """A destination that can be written, or one clear line."""
        path = Path(out or f"{stem}-1.h5")
        try:
            if "\0" in out:
                raise UserError(f'run.out = "{out}": a file name cannot hold a zero character')
            if out and path.is_dir():
                raise UserError(f'run.out = "{out}": is a directory; expected the name of a file')
            if out and is_being_written(path):
                raise UserError(f'run.out = "{out}": is being written by another run; choose another name')
            if out and path.exists() and not overwrite:
                raise UserError(f'run.out = "{out}": exists already; choose another name or add --overwrite')
            if not path.parent.is_dir():
                raise UserError(f'run.out = "{out}": there is no directory {path.parent}')
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise UserError(
                    f'run.out = "{path}": cannot be written: no permission to write in {path.parent.resolve()}'
                )
            os.close(os.open(temporary(path), os.O_CREAT | os.O_WRONLY))  # rather now than after set-up
            temporary(path).unlink()
        except (OSError, ValueError) as e:
            raise UserError(f'run.out = "{path}": cannot be written: {getattr(e, "strerror", None) or e}') from None
        return cls(path, "" if out else stem, overwrite)

    def publish(self, made: Path) -> Path:
        """Give a finished file its name, taking no other run's."""
        if self.overwrite and not self.stem:
            os.replace(made, self.path)
            return self.path
        path, number = self.path, 1
        while True:
            try:
                os.link(made, path)
                break
            except FileExistsError:
                if not self.stem:
                    raise
                number += 1
                path = Path(f"{self.stem}-{number}.h5")
            except OSError:  # a file system without hard links: take the name, then the file
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                os.replace(made, path)
                return path
        made.unlink()
        return path


def temporary(path: Path) -> Path:
    """The name under which this process writes a run file until it is complete."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}.partial")
