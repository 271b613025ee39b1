"""``python -m fbompi``."""

from fbompi.cli import main

if __name__ == "__main__":
    main()
