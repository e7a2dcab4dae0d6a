"""Many clients as one tensor program: the engine "batched".

`engine` takes plans apart, `training` and `scoring` compute, `network` and `batches` lay out models and samples.

What only a GPU does is in several places. Here it is `cuda_graphs`, what `training` calls accelerated, the bytes that
`network` works on at a time, and the samples and updates that `batches` and `engine` leave on the GPU. The last are
summed in `fedstrata.core.rows` and `fedstrata.core.aggregation`. `fedstrata.engine.device` has precision, seeds and
copies, and `fedstrata.engine.registry` what a GPU can be asked for.
"""

from fedstrata.engine.vectorized.engine import Vectorized, why_not_vectorized

__all__ = ["Vectorized", "why_not_vectorized"]
