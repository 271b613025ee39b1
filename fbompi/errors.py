"""The one exception whose text is for the user and ends a command with status 2."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend.

    Parameters
    ----------
    line
        One clear line that names the file or key, the value and what was expected.
    frames
        The user's own lines that led here, for a problem file that raised.
    """

    def __init__(self, line: str, frames: str = "") -> None:
        self.line = line if line.isprintable() else _printable(line)
        self.frames = frames
        super().__init__(self.line)

    def text(self) -> str:
        """Frames and line, as they travel between ranks."""
        return f"{self.frames}{self.line}"

    @classmethod
    def of(cls, text: str) -> UserError:
        """The error that `text` was made from."""
        frames, newline, line = text.rpartition("\n")
        return cls(line, frames + newline)


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
