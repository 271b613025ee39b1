"""The one exception whose text is for the user and ends a command with status 2."""


class UserError(Exception):
    """Something the user can mend: the text names the file or key, the value and what was expected.

    Parameters
    ----------
    text
        One clear line.
    frames
        The user's own lines that led here, for a problem file that raised.
    """

    def __init__(self, text: str, frames: str = "") -> None:
        super().__init__(text)
        self.frames = frames

    def __str__(self) -> str:
        return f"{self.frames}{self.args[0]}"
