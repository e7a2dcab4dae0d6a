"""`--verbose`: what the library notes while it works, on standard error, and where an error came from."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_LIBRARY = "fedstrata"
"""The logger above all of the library's. Without `--verbose` it has no handler, so only warnings are shown."""


def start_logging() -> None:
    """Show everything that the library notes, on standard error."""
    logger = logging.getLogger(_LIBRARY)
    logger.setLevel(logging.DEBUG)
    if not any(handler.get_name() == _LIBRARY for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.set_name(_LIBRARY)
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
        logger.propagate = False


def stop_logging() -> None:
    """Undo `start_logging`: a process may run several commands, as tests do."""
    logger = logging.getLogger(_LIBRARY)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    for handler in [each for each in logger.handlers if each.get_name() == _LIBRARY]:
        logger.removeHandler(handler)


def note_error(error: BaseException) -> None:
    """Show where an error came from, if `--verbose` was given."""
    logging.getLogger(_LIBRARY).debug("this is where the error came from", exc_info=error)
