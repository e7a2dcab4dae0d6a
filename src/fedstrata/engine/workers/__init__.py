"""Clients on all cores, or on many machines."""

from fedstrata.engine.workers.processes import Processes
from fedstrata.engine.workers.ray import Ray
from fedstrata.engine.workers.sharding import Transport, Workers

__all__ = ["Processes", "Ray", "Transport", "Workers"]
