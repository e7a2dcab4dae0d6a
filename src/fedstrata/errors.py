"""Everything that fedstrata raises on purpose, in one tree.

FedstrataError
├── InputError            what the user gave is wrong: exit status 2, one line
│   ├── ExperimentError   a key of the experiment
│   ├── DataError         a file, column, row or image
│   ├── PartitionError    the samples cannot be dealt as asked
│   ├── ModelError        the network
│   ├── LayoutError       a selector of layers
│   └── RecordError       a run folder
├── EngineError           workers were lost again and again: exit status 1
└── ContractError         an algorithm or an engine broke a rule of `core`: a bug, exit status 1

A message is one line: what was expected, what was found, what to do.
"""

from collections.abc import Mapping


class FedstrataError(Exception):
    """The root: catch it to catch everything that fedstrata raises on purpose."""


class InputError(FedstrataError):
    """What the user gave is wrong, and the message says what to change."""


class ExperimentError(InputError):
    """A key of the experiment is unknown, of the wrong type or out of range."""


class DataError(InputError):
    """A data set, file, column, row or image is missing or broken."""


class PartitionError(InputError):
    """The samples cannot be dealt to the clients in the way that was asked."""


class ModelError(InputError):
    """The network cannot be made, or does not fit the data."""


class LayoutError(InputError):
    """A selector matches no layer of the network."""


class RecordError(InputError):
    """A run folder is missing, damaged, or of another experiment."""


class EngineError(FedstrataError):
    """What computes was lost, and trying again did not help."""


class ContractError(FedstrataError):
    """An algorithm or an engine broke a rule of `fedstrata.core`."""


def insist(what: str, rules: Mapping[str, bool], found: object) -> None:
    """Refuse input that breaks a rule.

    Args:
        what: is looked at.
        rules: in words, and whether they hold.
        found: in its place.

    Raises:
        InputError: for the first rule that does not hold.
    """
    for rule, holds in rules.items():
        if not holds:
            raise InputError(f"{what}: expected that {rule}, found {found}")
