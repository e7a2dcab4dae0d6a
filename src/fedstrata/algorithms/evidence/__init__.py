"""Whether groups are real, and in which layer they show. Strata decides by it, and the scan of layers.

`split_half` asks clients to train on folds of their data, `fold_similarity` compares the folds and tests them, and
`layer_scan` finds the layer to compare.
"""
