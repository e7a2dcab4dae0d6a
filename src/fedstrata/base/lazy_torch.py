"""The module torch, imported at its first use.

An experiment is checked before torch is imported, so that a typing error is reported at once. The check needs the
algorithms, whose fields are the keys of the file, and all that they import. These modules import torch from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch

            found = getattr(torch, name)
            setattr(self, name, found)  # the next look finds it at once
            return found

    torch = _Torch()
