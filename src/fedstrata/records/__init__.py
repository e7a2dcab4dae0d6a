"""What a run leaves on disk: the only thing that reports read. `schema` and `final_scores` import no torch.

`folder` writes the files that `schema` describes. `measures` computes what records say of a round and of a run,
`final_scores` reads what clients reached, and `client_models` which models they use. `tracking` also gives the numbers
to other programs.

`checkpoint` keeps a state. `resume` chooses one to go on from and says with which software it was made, and
`changed_keys` says what may differ then.
"""
