"""The algorithms that an experiment can name. A new one is its file beside this one, and one line here."""

from typing import Any

from fedstrata.base.registry import Registry
from fedstrata.core import Algorithm

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
