"""What a run leaves on disk: the only thing that reports read. Importing this imports no torch; most names in it do.

`folder` writes the files that `schema` describes, with `json_text`, and `changed_labels` where clients are many.
`measures` computes what records say of a round and of a run, `final_scores` reads what clients reached, and
`client_models` which models they use. `tracking` also gives the numbers to other programs.

`checkpoint` keeps a state, which `state_text` writes, and `origin` says with which software it was made. `resume`
chooses one to go on from, and `changed_keys` says what may differ then.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, save
    from fedstrata.records.folder import Folder
    from fedstrata.records.measures import complete, count_worse, diverged, summarise
    from fedstrata.records.tracking import require, track

__all__ = [
    "Checkpoint",
    "Folder",
    "complete",
    "count_worse",
    "diverged",
    "diverged_at_end",
    "find_checkpoint",
    "require",
    "save",
    "summarise",
    "track",
]

_MODULES = {
    "checkpoint": ("Checkpoint", "find_checkpoint", "save"),
    "folder": ("Folder",),
    "measures": ("complete", "count_worse", "diverged", "diverged_at_end", "summarise"),
    "tracking": ("require", "track"),
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: `fedstrata.records.schema` is read where torch is not loaded."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"fedstrata.records.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
