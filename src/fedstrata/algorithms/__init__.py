"""The algorithms. One paper is one file that reads like its pseudo-code; `registry` has their names.

A class is imported at its first use: ``from fedstrata.algorithms import CFL``, or ``ALGORITHMS["cfl"]``.
"""

from typing import TYPE_CHECKING, Any

from fedstrata.algorithms.registry import ALGORITHMS, CLASSES
from fedstrata.base.registry import load_object

if TYPE_CHECKING:
    from fedstrata.algorithms.adacfl import AdaCFL
    from fedstrata.algorithms.baselines import Centralized, Local, Oracle, RandomGroups
    from fedstrata.algorithms.cfl import CFL
    from fedstrata.algorithms.ditto import Ditto
    from fedstrata.algorithms.fedavg import FedAvg
    from fedstrata.algorithms.fedbn import FedBN
    from fedstrata.algorithms.fedclust import FedClust
    from fedstrata.algorithms.fedper import FedPer
    from fedstrata.algorithms.fedprox import FedProx
    from fedstrata.algorithms.fedrep import FedRep
    from fedstrata.algorithms.fedtsdp import FedTSDP
    from fedstrata.algorithms.fesem import FeSEM
    from fedstrata.algorithms.finetune import FineTune
    from fedstrata.algorithms.fl_hc import FLHC
    from fedstrata.algorithms.flis import FLIS
    from fedstrata.algorithms.hicfl import HiCFL
    from fedstrata.algorithms.ifca import IFCA
    from fedstrata.algorithms.layercfl import LayerCFL
    from fedstrata.algorithms.lg_fedavg import LGFedAvg
    from fedstrata.algorithms.pacfl import PACFL
    from fedstrata.algorithms.strata import Strata

__all__ = [
    "ALGORITHMS",
    "CFL",
    "FLHC",
    "FLIS",
    "IFCA",
    "PACFL",
    "AdaCFL",
    "Centralized",
    "Ditto",
    "FeSEM",
    "FedAvg",
    "FedBN",
    "FedClust",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedTSDP",
    "FineTune",
    "HiCFL",
    "LGFedAvg",
    "LayerCFL",
    "Local",
    "Oracle",
    "RandomGroups",
    "Strata",
]


def __getattr__(name: str) -> Any:
    """Import the class of an algorithm."""
    target = next((each for each in CLASSES.values() if each.endswith(f":{name}")), None)
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_object(target)
