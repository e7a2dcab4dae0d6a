"""From an experiment to what a run needs: its problem, its clients, and what happens on the way between them.

`build` makes a `run_setup.RunSetup` of the `samples` and the `problem`. `participation` draws who takes part.
`attacks`, `privacy` and `probes` add what an experiment asks for, and `data_warnings` looks at the data.
"""
