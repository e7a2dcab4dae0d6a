"""Client-level differential privacy: how much noise, what it promises, and what it does not cover."""

from fedstrata.privacy.accounting import Exposure, Sampled, epsilon_of, noise_for
from fedstrata.privacy.coverage import Coverage, coverage_of
from fedstrata.privacy.local import LocalPrivacy

__all__ = ["Coverage", "Exposure", "LocalPrivacy", "Sampled", "coverage_of", "epsilon_of", "noise_for"]
