"""Make exhibits of the papers again.

    python -m experiments.papers.reproduce H-T5        # or several ids, all, --paper hicfl
    python -m experiments.papers.reproduce --list
    python -m experiments.papers.reproduce --page      # writes docs/evidence/exhibits.md

The exhibits are in `experiments/papers`.
"""

from __future__ import annotations

import signal
import sys

from experiments.papers.command import main as command


def main() -> None:
    """Hand over to the command."""
    # A run that is ended so writes down the time that it took; the same command goes on with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    sys.exit(command())


if __name__ == "__main__":
    main()
