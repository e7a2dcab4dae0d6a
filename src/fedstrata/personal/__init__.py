"""What every client does with its cluster's model: personal models after or beside any clustering.

`stage` has what a method is, and `PERSONAL`, the list of them. A new one is a file beside `finetune` and a line there.
The algorithms of the same names train such models instead of clusters.
"""

from fedstrata.personal.stage import (
    PERSONAL,
    KnowsPersonalModels,
    LastModels,
    PersonalChoice,
    PersonalMethod,
    PersonalPlans,
)

__all__ = ["PERSONAL", "KnowsPersonalModels", "LastModels", "PersonalChoice", "PersonalMethod", "PersonalPlans"]
