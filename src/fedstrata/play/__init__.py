"""One run, round by round. `steps.run_steps` is the whole of it, in its order.

Its beginning: `steps` makes the folder or goes on with one, and `client_descriptions` says what the clients have.

Its rounds: `rounds` has the one loop. `recorder` writes down what happened, with the bytes that travel.

Its end: `finish` lets clients tune their models, and makes the summary. `used_models` says which model each client
uses, and tests it.

Around it: `run` starts a run, and another one beside it as its baseline; `scan` plays a few rounds before. `interrupt`
and `progress` are what the user sees meanwhile.
"""
