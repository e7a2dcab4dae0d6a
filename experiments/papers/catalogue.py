"""All exhibits of the four papers, by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from .adacfl import EXHIBITS as ADACFL
from .exhibit import Exhibit
from .fedtsdp import EXHIBITS as FEDTSDP
from .hicfl import EXHIBITS as HICFL
from .layercfl import EXHIBITS as LAYERCFL

PAPERS = {
    "layercfl": "LayerCFL (Cybersecurity 2023)",
    "adacfl": "AdaCFL (Mobile Networks and Applications 2022)",
    "hicfl": "HiCFL (IEEE TMC 2024)",
    "fedtsdp": "FedTSDP (Complex & Intelligent Systems 2024)",
}

EXHIBITS = {exhibit.id: exhibit for exhibit in (*LAYERCFL, *ADACFL, *HICFL, *FEDTSDP)}
"""Id -> exhibit, in the order of the page."""


def chosen(ids: Sequence[str], paper: str | None) -> list[Exhibit]:
    """The exhibits that are asked for and can be run: as they are named, or the cheapest first where none is.

    Raises:
        KeyError: When there is no exhibit of that id.
    """
    everything = ids == ["all"] or (not ids and paper is not None)
    cheapest_first = sorted(EXHIBITS.values(), key=lambda each: each.hours)
    named = cheapest_first if everything else [EXHIBITS[each] for each in ids]
    return [each for each in named if paper in (None, each.paper) and each.measure is not None]
