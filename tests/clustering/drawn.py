"""Random draws, and similarities of clients in groups."""

import torch


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups(*sizes: int) -> torch.Tensor:
    """1 within each group, 0 across, (1, m, m)."""
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return (labels[:, None] == labels).double()[None]


def noise(m: int, draw: torch.Generator, views: int = 1) -> torch.Tensor:
    """Symmetric matrices (v, m, m) of independent normal entries."""
    upper = torch.randn(views, m, m, generator=draw, dtype=torch.float64).triu(1)
    return upper + upper.mT


def updates(folds: int, *sizes: int, draw: torch.Generator, apart: float = 0.0, p: int = 60) -> torch.Tensor:
    """Updates (f, m, p) of clients in groups."""
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    means = torch.randn(p, generator=draw) + apart * torch.randn(len(sizes), p, generator=draw)
    return means[truth] + torch.randn(folds, len(truth), p, generator=draw)
