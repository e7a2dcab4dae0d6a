"""Clients on all cores, or on many machines."""

from fedstrata.engine.parallel.processes import Processes
from fedstrata.engine.parallel.ray import Ray
from fedstrata.engine.parallel.sharding import Parallel, Transport

__all__ = ["Parallel", "Processes", "Ray", "Transport"]
