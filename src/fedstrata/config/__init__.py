"""The experiment file: its keys, how it is read and checked, and where its run is recorded. Nothing imports torch."""

from fedstrata.config.folders import folder_of
from fedstrata.config.grid import SweepPlan, choose_sweep, parse_grid
from fedstrata.config.reading import dumps, load_experiment
from fedstrata.config.selection import choose, choose_all
from fedstrata.config.tables import Experiment

__all__ = [
    "Experiment",
    "SweepPlan",
    "choose",
    "choose_all",
    "choose_sweep",
    "dumps",
    "folder_of",
    "load_experiment",
    "parse_grid",
]
