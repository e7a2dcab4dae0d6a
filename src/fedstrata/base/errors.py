"""Everything that fedstrata raises on purpose, in one tree.

FedstrataError
├── InputError            the input is wrong: exit status 2, one line
│   ├── ExperimentError   a key of the experiment
│   ├── DataError         a file, column, row or image
│   │   └── RowError      a value, in a row that the message names
│   ├── PartitionError    the samples cannot be partitioned as asked
│   │   └── PartitionKeyError  the same, because of a key that the message names
│   ├── ModelError        the network
│   ├── LayoutError       a selector of layers
│   └── RecordError       a run folder
├── UserCodeError         a function of the user's own failed: exit status 1, its traceback below the line
├── MachineError          the machine failed, not the input: exit status 1; a run can be resumed
│   ├── ResourceError     no disk space, memory, open files or permission was left
│   └── EngineError       workers were lost or did not answer, again and again
└── ContractError         an algorithm or an engine broke a rule of `core`: a bug, exit status 1

A message is one line: what was expected, what was found, what to do.
"""

import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path


class FedstrataError(Exception):
    """The root: catch it to catch everything that fedstrata raises on purpose.

    Attributes:
        trace: The traceback of the user's own code, which stands below the line of the message; mostly empty.
    """

    trace: str = ""


class InputError(FedstrataError):
    """The input is wrong, and the message says what to change."""


class ExperimentError(InputError):
    """A key of the experiment is unknown, of the wrong type or out of range."""


class DataError(InputError):
    """A data set, file, column, row or image is missing or broken."""


class RowError(DataError):
    """A value in a row of a file, a table or an array is missing or broken.

    Attributes:
        place: The file, or the data that are put together of several files.
        row: The row in it, counted from 0.
        problem: What is wrong with the row, in the words after its number.
    """

    def __init__(self, place: str, row: int, problem: str) -> None:
        """Make the message of the three."""
        counted = "row 0 is the first below the header" if ".csv" in place.lower() else "rows count from 0"
        super().__init__(f"{place}: row {row} {problem} ({counted})")
        self.place = place
        self.row = row
        self.problem = problem

    def __reduce__(self) -> tuple[type["RowError"], tuple[str, int, str]]:
        """Return how it is made again after it was sent to another process."""
        return RowError, (self.place, self.row, self.problem)

    def in_part(self, parts: Iterable[tuple[str, int]]) -> "RowError":
        """Return the error with the part that the row is in, and the row's number there.

        Args:
            parts: The place of each part, and the number of its rows. The rows of all parts follow each other.
        """
        row = self.row
        for place, count in parts:
            if row < count:
                return RowError(place, row, self.problem)
            row -= count
        return self


class PartitionError(InputError):
    """The samples cannot be allocated to the clients in the way that was asked."""


class PartitionKeyError(PartitionError):
    """The samples do not fit a key of the experiment. The message begins with this key."""


class ModelError(InputError):
    """The network cannot be made, or does not fit the data."""


class LayoutError(InputError):
    """A selector matches no layer of the network.

    Attributes:
        selector: The selector.
    """

    selector: str = ""


class RecordError(InputError):
    """A run folder is missing, damaged, or of another experiment."""


class UserCodeError(FedstrataError):
    """A function of the user's own failed, such as a loss or a network.

    Args:
        reason: Which function, and its error in one line.
        trace: The traceback of the user's code.
    """

    def __init__(self, reason: str, trace: str = "") -> None:
        """Keep the traceback."""
        super().__init__(reason)
        self.trace = trace


class MachineError(FedstrataError):
    """The machine failed; nothing is wrong with the input, and a run can be resumed once the cause is gone.

    Args:
        reason: What was expected, what was found and what to do, in one line.
        says_how: Whether the reason ends with the command that goes on, which is not the one that was given.

    Attributes:
        reason: The same line.
        says_how: The same.
        folder: The folder of the run or comparison that can be resumed. None where nothing was begun.
    """

    def __init__(self, reason: str, *, says_how: bool = False) -> None:
        """Keep the reason; the folder is filled in where it is known."""
        super().__init__(reason)
        self.reason = reason
        self.says_how = says_how
        self.folder: Path | None = None

    def __str__(self) -> str:
        """The reason, and how to resume from Python; the command line prints its own command."""
        if self.folder is None:
            return self.reason
        return f"{self.reason}; then resume with resume=True and out={str(self.folder)!r}"


class ResourceError(MachineError):
    """The machine has no disk space, memory, open files, threads or permission left for what is to be done."""


class EngineError(MachineError):
    """Workers or clients were lost or did not answer, and trying again did not help."""


class ContractError(FedstrataError):
    """An algorithm or an engine broke a rule of `fedstrata.core`."""


_OTHERS_CODE = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""The folders of Python's own modules and of installed packages."""


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def users_trace(error: BaseException) -> str:
    """The traceback of an error from the first frame on that is not fedstrata's own."""
    own = str(Path(__file__).parent.parent)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(own):
        frames = frames.tb_next
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(frames)]
    if all(file.startswith(_OTHERS_CODE) for file in files):
        return ""  # The user has called something, and written nothing that could be mended.
    return "".join(traceback.format_exception(type(error), error, frames))


def check_rules(what: str, rules: Mapping[str, bool], found: object, error: type[FedstrataError] = InputError) -> None:
    """Refuse what breaks a rule.

    Args:
        what: What is checked, for the message.
        rules: Whether each rule holds, by the rule in words.
        found: What was found, for the message.
        error: The type of the error.

    Raises:
        FedstrataError: For the first rule that does not hold.
    """
    for rule, holds in rules.items():
        if not holds:
            raise error(f"{what}: expected that {rule}, found {found}")
