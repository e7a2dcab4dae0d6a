"""The personal methods that an experiment can name. A new one is its file beside this one, and one line here."""

from fedstrata.base.registry import Registry
from fedstrata.personal.stage import PersonalMethod

PERSONAL: Registry[type[PersonalMethod]] = Registry(
    {
        "finetune": "fedstrata.personal.finetune:FineTuned",
        "head": "fedstrata.personal.finetune:TunedHead",
        "ditto": "fedstrata.personal.ditto:DittoBeside",
        "best": "fedstrata.personal.best:Best",
    },
    group="fedstrata.personal",
)
