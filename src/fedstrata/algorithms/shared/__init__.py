"""What several algorithms share: one textbook idea a file.

Splitting in two: `bipartition_round` is a round of CFL, LayerCFL and HiCFL, by way of `recursive_bipartition`, with
`proposed_split`; `model_stability` and `stability_trigger` say when a cluster may split.

Whether groups are real: `split_half` asks clients to train on folds of their data, `fold_similarity` compares the folds
and tests them, and `split_guard` does so for any algorithm. `layer_scan` finds the layer to compare.

Grouping once: `one_shot`, by the updates of a round or by signatures.

Other kinds of training: `personal_layers`, `ditto_task`, `tuning` and `interpolation`.

Small parts: `groups` has statistics by group, `client_rows` puts rows back among all clients, and `keys` are types of
hyper-parameters.
"""
