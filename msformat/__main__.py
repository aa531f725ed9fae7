"""``python -m msformat`` is the command ``msformat``."""

import sys

from msformat.cli import main

if __name__ == "__main__":
    sys.exit(main())
