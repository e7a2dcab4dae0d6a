"""What may happen to an update between a client and the server, and how updates become models that leave the server.

On the way: `steps` has what a step is; those of clients are in `noise`, `attacks` and `compression`, and that of the
server in `validation`. `fedstrata.build.run_setup` lists them. After them, in an algorithm's `update` and
in `core.aggregate`, which that calls: the `rules` of means, noisy sums in `noise`, and `checks` of which updates count.

What noise promises: `disclosure` has what each algorithm discloses, and `accounting` computes with it.
"""
