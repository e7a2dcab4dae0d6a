"""torch, imported at its first use.

An experiment is checked before torch is imported, so that a typing error is answered at once. The nouns, the
clustering functions and the algorithms are needed for that check (their fields are the keys of the file), so
they say ``from fedstrata.lazy_torch import torch`` where others say ``import torch``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Torch()
