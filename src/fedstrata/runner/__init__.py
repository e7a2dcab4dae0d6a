"""One run, from an experiment to what it came to. `steps.run_steps` is the whole of it, in its order.

What a run is built from: `build` makes a `run_setup.RunSetup` of the `samples`, the `problem` and the `server_setup`.
`attacks`, `privacy` and `secure_sums` add what an experiment asks for, and `users_algorithm` guards a user's own code.

Its beginning: `begin` makes the folder or goes on with one, and `client_descriptions` says what the clients have.

Its rounds: `rounds` has the one loop. `participation` draws who takes part, `validation` sees which answers count, and
`recorder` writes down what happened, with `traffic`, `layer_gap` and `probes`.

Its end: `finish` makes the summary. `used_models` says which model each client uses, `personal` tunes it, `classified`
and `backdoor` test it.

Around it: `run` and `iterate` start a run, `baseline` another one beside it, and `scan` a few rounds before it.
`interrupt`, `progress` and `notebook` are what the user sees meanwhile, `machine` is what last digits depend on.
`result` is what the user gets, `assign` places newcomers by it, and `export` writes its models for other programs.
"""
