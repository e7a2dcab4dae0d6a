"""What every client does with its cluster's model: personal models after or beside any clustering."""

from fedstrata.personal.stage import (
    PERSONAL,
    KnowsPersonalModels,
    LastModels,
    PersonalChoice,
    PersonalMethod,
    PersonalPlans,
)

__all__ = ["PERSONAL", "KnowsPersonalModels", "LastModels", "PersonalChoice", "PersonalMethod", "PersonalPlans"]
