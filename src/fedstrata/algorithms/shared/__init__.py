"""What several algorithms share: one textbook idea a file.

Splitting in two: `bipartition_round` is a round of CFL, LayerCFL and HiCFL, by way of `recursive_bipartition`, with
`proposed_split` and `split_guard`; `model_stability` and `stability_trigger` say when a cluster may split.
"""
