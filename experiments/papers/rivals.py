"""Settings with another algorithm: what the method of a paper is compared with."""

from __future__ import annotations

from .exhibit import Setting


def other(setting: Setting, algorithm: str, *keys: str) -> Setting:
    """A setting with another algorithm, whose keys start from its defaults."""
    kept = [text for text in setting.sets if not text.startswith("algorithm.")]
    return Setting(setting.experiment, (*kept, f"algorithm.name={algorithm}", *(f"algorithm.{key}" for key in keys)))


def cfl_by_norms(setting: Setting, eps1: float, eps2: float, gamma: float, *keys: str) -> Setting:
    """CFL in a setting, gated by the norms of updates (Sattler et al., Algorithm 2).

    Args:
        setting: The setting.
        eps1: The norm that the mean update must be below for a split.
        eps2: The norm that the largest update must be above.
        gamma: The bound of Theorem 1; 0 asks for none.
        keys: What else differs from the defaults.
    """
    norms = (f"eps1={eps1}", f"eps2={eps2}")
    return other(setting, "cfl", *norms, f"gamma={gamma}", "linkage=single", "min_split=3", *keys)
