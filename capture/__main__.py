"""``python -m capture run train.py``: a training captured without an edit; see docs/integrations.md."""

import sys

from capture.launch.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
