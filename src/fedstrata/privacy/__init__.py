"""Client-level differential privacy: how much noise, what it promises, and what it does not cover. Secure sums."""

from fedstrata.privacy.accounting import Exposure, Sampled, epsilon_of, noise_for
from fedstrata.privacy.coverage import FIXED_CLUSTERS, Coverage, coverage_of
from fedstrata.privacy.local import LocalPrivacy
from fedstrata.privacy.secure_sum import SumTerms

__all__ = [
    "FIXED_CLUSTERS",
    "Coverage",
    "Exposure",
    "LocalPrivacy",
    "Sampled",
    "SumTerms",
    "coverage_of",
    "epsilon_of",
    "noise_for",
]
