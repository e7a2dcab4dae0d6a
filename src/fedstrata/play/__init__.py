"""One run, round by round. `steps.run_steps` is the whole of it, in its order.

Its beginning: `begin` makes the folder or goes on with one, and `client_descriptions` says what the clients have.

Its rounds: `rounds` has the one loop. `recorder` writes down what happened, with `traffic` and `layer_gap`.

Its end: `finish` makes the summary. `used_models` says which model each client uses, `personal` tunes it, `classified`
and `backdoor` test it.

Around it: `run` and `iterate` start a run, `baseline` another one beside it, and `scan` a few rounds before it.
`interrupt`, `progress` and `notebook` are what the user sees meanwhile.
"""
