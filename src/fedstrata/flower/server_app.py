"""The ServerApp, imported by Flower alone."""

from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstrata.flower.server import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names."""
    # Flower's grid promises iterables, and gives lists.
    serve(cast(Any, grid), context.run_config)
