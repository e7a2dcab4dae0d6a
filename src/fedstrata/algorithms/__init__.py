"""The algorithms that an experiment can name. One paper is one file that reads like its pseudo-code.

A new one is its file beside this one, and one line in `CLASSES`.

A class is imported at its first use: ``from fedstrata.algorithms import CFL``, or ``ALGORITHMS["cfl"]``.
"""

from typing import TYPE_CHECKING, Any

from fedstrata.base.registry import Registry, load_object
from fedstrata.core import Algorithm

if TYPE_CHECKING:
    from fedstrata.algorithms.adacfl import AdaCFL
    from fedstrata.algorithms.baselines import Centralized, Local, Oracle, RandomGroups
    from fedstrata.algorithms.cfl import CFL
    from fedstrata.algorithms.clove import CLoVE
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
    "CLoVE",
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

CLASSES = {
    "fedavg": "fedstrata.algorithms.fedavg:FedAvg",
    "local": "fedstrata.algorithms.baselines:Local",
    "centralized": "fedstrata.algorithms.baselines:Centralized",
    "oracle": "fedstrata.algorithms.baselines:Oracle",
    "random_groups": "fedstrata.algorithms.baselines:RandomGroups",
    "finetune": "fedstrata.algorithms.finetune:FineTune",
    "fedprox": "fedstrata.algorithms.fedprox:FedProx",
    "ditto": "fedstrata.algorithms.ditto:Ditto",
    "fedper": "fedstrata.algorithms.fedper:FedPer",
    "fedrep": "fedstrata.algorithms.fedrep:FedRep",
    "lg_fedavg": "fedstrata.algorithms.lg_fedavg:LGFedAvg",
    "fedbn": "fedstrata.algorithms.fedbn:FedBN",
    "ifca": "fedstrata.algorithms.ifca:IFCA",
    "clove": "fedstrata.algorithms.clove:CLoVE",
    "cfl": "fedstrata.algorithms.cfl:CFL",
    "layercfl": "fedstrata.algorithms.layercfl:LayerCFL",
    "hicfl": "fedstrata.algorithms.hicfl:HiCFL",
    "fedtsdp": "fedstrata.algorithms.fedtsdp:FedTSDP",
    "adacfl": "fedstrata.algorithms.adacfl:AdaCFL",
    "fl_hc": "fedstrata.algorithms.fl_hc:FLHC",
    "fesem": "fedstrata.algorithms.fesem:FeSEM",
    "fedclust": "fedstrata.algorithms.fedclust:FedClust",
    "pacfl": "fedstrata.algorithms.pacfl:PACFL",
    "flis": "fedstrata.algorithms.flis:FLIS",
    "strata": "fedstrata.algorithms.strata:Strata",
}
"""The class of each algorithm of the library. ``from fedstrata.algorithms import FedAvg`` finds it here too."""

ALGORITHMS: Registry[type[Algorithm[Any]]] = Registry(CLASSES, group="fedstrata.algorithms")


def __getattr__(name: str) -> Any:
    """Import the class of an algorithm."""
    target = next((each for each in CLASSES.values() if each.endswith(f":{name}")), None)
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_object(target)
