"""What a run leaves on disk: the only thing that reports read. `schema` and `arrays` import no torch.

`folder` writes the files that `schema` describes, and `arrays` reads the tables and arrays among them. `measures`
computes what records say of a round and of a run. `client_models` says which models clients use. `tracking` also gives
the numbers to other programs.

`checkpoint` keeps a state. `resume` chooses one to go on from and says with which software it was made.
"""
