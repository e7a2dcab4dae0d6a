"""What may happen to an update between a client and the server, and what the server accepts.

`local_noise`, `compression` and `attacks` act on the client's side; `validation` on the server's. `disclosure` has what
each algorithm discloses; `accounting` and `coverage` say what noise promises.
"""
