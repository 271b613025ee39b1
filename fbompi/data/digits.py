"""The 1,797 optical digits, 8×8 pixels of 0…16, that ship with the package.

Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998), CC BY 4.0:
its test part, pixel for pixel.
"""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np

PLACE = files("fbompi.data") / "digits.npz"


def load() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797×64, uint8) and labels (uint8)."""
    with as_file(PLACE) as path, np.load(path, allow_pickle=False) as archive:
        return archive["images"], archive["labels"]
