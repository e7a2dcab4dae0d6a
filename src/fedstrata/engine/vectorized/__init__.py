"""Many clients as one tensor program: the engine "batched".

`engine` takes plans apart, `training` and `scoring` compute, `network` and `batches` lay out models and samples. What
only a GPU does is in `cuda_graphs`, in `fedstrata.engine.device` and in what `training` calls accelerated.
"""

from fedstrata.engine.vectorized.engine import Vectorized, why_not_vectorized

__all__ = ["Vectorized", "why_not_vectorized"]
