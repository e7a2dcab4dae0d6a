"""The server: where FedAvg was, Clustered is."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from clustered.task import Net
from fedstrata.flower import Clustered

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train one model for each group of sites."""
    config = context.run_config
    out = str(config["out"]) or None
    strategy = Clustered(
        "strata", model=Net, shape=(64,), classes=10, out=out, fraction_train=float(config["fraction-train"])
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
    )
    for site, cluster in sorted(strategy.clusters.items()):
        print(f"site {site} uses the model of cluster {cluster}")
    assert strategy.run is not None
    print("open", (strategy.run.folder / "report.html").resolve())
