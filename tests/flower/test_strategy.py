"""`Clustered` as a strategy of Flower, with an app of the quickstart's form in this process."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_grid import AppGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from quickstart import NODES, FrozenNet, Net, client_app, samples, trained
from safetensors.torch import load_file
from sklearn.linear_model import SGDClassifier

import fedstrata as fs
from fedstrata.base.errors import ContractError, EngineError, ExperimentError, InputError
from fedstrata.flower import Clustered, fold, serve
from fedstrata.flower.grid import Clock

NODE_IDS = range(900, 900 + NODES)
GROUPS = [node % 2 for node in NODE_IDS]


def first() -> ArrayRecord:
    """The first model."""
    torch.manual_seed(0)
    return ArrayRecord(Net().state_dict())


def play(strategy: Clustered, grid: AppGrid, rounds: int, arrays: ArrayRecord | None = None) -> Result:
    """Play rounds of the quickstart."""
    config = ConfigRecord({"lr": 0.1})
    return strategy.start(grid, arrays or first(), num_rounds=rounds, train_config=config)


def of(message: Message) -> Any:
    """The content of a message, whose records are of the kinds that the test knows."""
    return message.content


def accuracy_of(result: Result, round: int) -> float:
    """The accuracy of all nodes after a round."""
    metrics: Any = result.evaluate_metrics_clientapp[round]
    return float(metrics["eval_acc"])


def groups(strategy: Clustered) -> list[int]:
    """The cluster of each node, numbered by their first members."""
    labels = [strategy.clusters[str(node)] for node in NODE_IDS]
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]


@pytest.mark.parametrize(
    ("algorithm", "folds", "fraction", "rounds"),
    [
        ("strata", True, 1.0, 6),
        ("strata", True, 0.5, 14),
        ({"name": "ifca", "k": 2}, False, 1.0, 6),
        ({"name": "clove", "k": 2}, True, 1.0, 8),
        ({"name": "fesem", "k": 2}, False, 1.0, 6),
        ("layercfl", False, 1.0, 15),
    ],
)
def test_an_app_of_flowers_quickstart_finds_the_groups(
    algorithm: Any, folds: bool, fraction: float, rounds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = Clustered(algorithm, model=Net, fraction_train=fraction, out=tmp_path / "mine")
    result = play(strategy, AppGrid(client_app(folds=folds), NODE_IDS), rounds)
    assert groups(strategy) == GROUPS
    assert [*result.train_metrics_clientapp] == [*range(1, rounds + 1)]
    assert accuracy_of(result, rounds) > 0.9
    page = tmp_path / "mine" / "report.html"
    assert page.is_file() and f"report: {page}" in "".join(capsys.readouterr().err.splitlines())


def test_an_app_that_sends_what_it_trains_is_clustered_by_that(tmp_path: Path) -> None:
    torch.manual_seed(0)
    strategy = Clustered({"name": "fesem", "k": 2}, model=FrozenNet, out=tmp_path / "mine")
    play(strategy, AppGrid(client_app(folds=False, network=FrozenNet), NODE_IDS), 6, trained(FrozenNet()))
    assert groups(strategy) == GROUPS
    assert all([*arrays] == ["head.weight", "head.bias"] for arrays in strategy.models.values())


def test_the_arrays_and_files_are_the_models_of_the_clusters(tmp_path: Path) -> None:
    strategy = Clustered({"name": "fesem", "k": 2}, model=Net, out=tmp_path / "mine", shape=(64,), classes=10)
    result = play(strategy, AppGrid(client_app(folds=False), NODE_IDS), 4)
    strategy.export(tmp_path / "models")
    files = json.loads((tmp_path / "models" / "clusters.json").read_text())
    inputs, labels = samples(0)
    run = fs.load(tmp_path / "mine", network=Net)
    for node in ("900", "901"):
        network = Net()
        network.load_state_dict(load_file(tmp_path / "models" / files[node]))
        said = network(torch.from_numpy(inputs)).argmax(dim=1).numpy()
        assert said.tolist() == run.predict(node, inputs).tolist()
    assert (run.predict("900", inputs) == labels).mean() > 0.9 > (run.predict("901", inputs) == labels).mean()
    assert result.arrays.keys() == first().keys()


def test_the_same_seed_gives_the_same_bits_and_a_resumed_run_too(tmp_path: Path) -> None:
    def models(out: str, *parts: int) -> dict[int, bytes]:
        for place, rounds in enumerate(parts):
            torch.manual_seed(1)
            strategy = Clustered("cfl", out=tmp_path / out, fraction_train=0.5, resume=place > 0)
            play(strategy, AppGrid(plain_app(), NODE_IDS), rounds, plain_arrays())
        return {
            node: b"".join(each.numpy().tobytes() for each in arrays.values())
            for node, arrays in strategy.models.items()
        }

    assert models("whole", 4) == models("again", 4) == models("parts", 2, 4)


def plain_values() -> dict[str, Any]:
    """The arrays of a logistic regression with random weights."""
    weights = np.random.normal(size=(10, 64))  # noqa: NPY002  # which the library seeds
    return {"weight": weights, "bias": np.zeros(10), "steps": np.zeros(1, np.int64)}


def plain_arrays() -> ArrayRecord:
    """A logistic regression on digits as arrays of numpy."""
    return ArrayRecord(
        {"weight": Array(np.zeros((10, 64))), "bias": Array(np.zeros(10)), "steps": Array(np.zeros(1, np.int64))}
    )


def plain_app(part: Callable[..., Any] = lambda data, message, **more: data, *, serves: bool = False) -> ClientApp:
    """An app in numpy alone, by gradient descent."""
    app = ClientApp()

    def probabilities(arrays: dict[str, Any], inputs: Any) -> Any:
        outputs = inputs @ arrays["weight"].T + arrays["bias"]
        exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy().copy() for name, array in of(message)["arrays"].items()}
        inputs, labels = samples(int(context.node_config["partition-id"]))
        inputs, labels = part((inputs[:96], labels[:96]), message)
        for _ in range(20):
            errors = probabilities(arrays, inputs) - np.eye(10)[labels]
            arrays["weight"] -= 0.5 * errors.T @ inputs / len(labels)
            arrays["bias"] -= 0.5 * errors.mean(axis=0)
        record = ArrayRecord({name: Array(values) for name, values in arrays.items()})
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy() for name, array in of(message)["arrays"].items()}
        inputs, labels = samples(int(context.node_config["partition-id"]))
        inputs, labels = part((inputs[:96], labels[:96]), message, test=(inputs[96:], labels[96:]))
        found = probabilities(arrays, inputs)
        metrics: dict[str, Any] = {
            "eval_loss": float(-np.log(found[np.arange(len(labels)), labels] + 1e-9).mean()),
            "eval_acc": float((found.argmax(axis=1) == labels).mean()),
            "num-examples": len(labels),
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    if serves:
        serve(app, train, evaluate)
    return app


def test_an_app_of_numpy_finds_the_groups_and_keeps_its_types(tmp_path: Path) -> None:
    strategy = Clustered("strata", out=tmp_path / "mine")
    result = play(strategy, AppGrid(plain_app(fold), NODE_IDS), 6, plain_arrays())
    assert groups(strategy) == GROUPS
    assert {name: array.dtype for name, array in result.arrays.items()} == {
        "weight": "float64",
        "bias": "float64",
        "steps": "int64",
    }


def test_an_app_of_scikit_learn_finds_the_groups(tmp_path: Path) -> None:
    app = ClientApp()

    def model_of(message: Message) -> SGDClassifier:
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=0)
        model.classes_ = np.arange(10)
        model.coef_ = of(message)["arrays"]["coef"].numpy().copy()
        model.intercept_ = of(message)["arrays"]["intercept"].numpy().copy()
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        inputs, labels = fold(tuple(each[:96] for each in samples(int(context.node_config["partition-id"]))), message)
        inputs = inputs.astype(float)
        model = model_of(message)
        for _ in range(5):
            model.partial_fit(inputs, labels)
        arrays = ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(labels)})}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        found = samples(int(context.node_config["partition-id"]))
        train, test = (tuple(each[rows] for each in found) for rows in (slice(96), slice(96, None)))
        inputs, labels = fold(train, message, test=test)
        shares = np.clip(model_of(message).predict_proba(inputs.astype(float)), 1e-9, 1)
        metrics: dict[str, Any] = {
            "eval_loss": float(-np.log(shares[np.arange(len(labels)), labels]).mean()),
            "eval_acc": float((shares.argmax(axis=1) == labels).mean()),
            "num-examples": len(labels),
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    arrays = ArrayRecord({"coef": Array(np.zeros((10, 64))), "intercept": Array(np.zeros(10))})
    strategy = Clustered("strata", out=tmp_path / "mine")
    play(strategy, AppGrid(app, NODE_IDS), 6, arrays)
    assert groups(strategy) == GROUPS


@pytest.mark.parametrize("serves", [False, True])
def test_an_app_that_trains_on_all_data_where_a_part_is_asked_is_told_the_line_to_add(
    serves: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = AppGrid(client_app(folds=False, served=serves), NODE_IDS)
    with pytest.raises(EngineError):
        play(Clustered("strata", model=Net, out=tmp_path / "mine", serve=serves), grid, 4)
    assert "fold(data, message)" in " ".join(capsys.readouterr().err.split())


def test_clients_that_choose_by_test_data_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ifca = {"name": "ifca", "k": 2}
    play(Clustered(ifca, model=Net, out=tmp_path / "mine"), AppGrid(client_app(folds=False), NODE_IDS), 3)
    assert capsys.readouterr().err.count("test=test") == 1
    play(Clustered(ifca, model=Net, out=tmp_path / "other"), AppGrid(client_app(folds=True), NODE_IDS), 3)
    assert "test=test" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "error", "text"),
    [
        ("fedper", ExperimentError, "layers of a client's own"),
        ("pacfl", ExperimentError, "subspaces"),
        ("centralized", ExperimentError, "keep their data"),
        ("oracle", ExperimentError, "true group"),
        ("nothing", ExperimentError, "nothing"),
        ({"name": "ifca", "k": 2}, ExperimentError, "model=Net"),
    ],
)
def test_what_an_app_cannot_do_is_refused_before_anybody_is_asked(
    algorithm: Any, error: type[Exception], text: str, tmp_path: Path
) -> None:
    grid = AppGrid(client_app(folds=True), NODE_IDS)
    with pytest.raises(error, match=text):
        play(Clustered(algorithm, out=tmp_path / "mine"), grid, 3)
    assert grid.sent == []
    assert not (tmp_path / "mine").exists()


def replying(changed: Callable[[Any], Any]) -> Callable[[Message, Message], Message]:
    """Node 902 changes its replies to trainings."""

    def twist(message: Message, reply: Message) -> Message:
        if (message.metadata.dst_node_id, message.metadata.message_type) == (902, "train"):
            changed(reply.content)
        return reply

    return twist


def without_a_layer(content: Any) -> None:
    del content["arrays"]["head.bias"]


def of_another_shape(content: Any) -> None:
    content["arrays"]["head.bias"] = Array(np.zeros(11, np.float32))


def not_finite(content: Any) -> None:
    content["arrays"]["head.bias"] = Array(np.full(10, np.nan, np.float32))


def without_samples(content: Any) -> None:
    content["metrics"]["num-examples"] = 0


def without_metrics(content: Any) -> None:
    del content["metrics"]


def with_endless_samples(content: Any) -> None:
    content["metrics"]["num-examples"] = float("inf")


def with_huge_samples(content: Any) -> None:
    content["metrics"]["num-examples"] = 2**62


def of_other_bytes(content: Any) -> None:
    content["arrays"]["head.bias"] = Array("float32", (10,), "numpy.ndarray", b"nothing")


def of_texts(content: Any) -> None:
    content["arrays"]["head.bias"] = Array(np.array(["a"] * 10))


def of_an_archive(content: Any) -> None:
    """Which numpy would open, and which has no numbers of its own."""
    file = io.BytesIO()
    np.savez(file, np.zeros(10, "float32"))
    content["arrays"]["head.bias"] = Array("float32", (10,), "numpy.ndarray", file.getvalue())


@pytest.mark.parametrize(
    "changed",
    [
        of_an_archive,
        without_a_layer,
        of_another_shape,
        not_finite,
        without_samples,
        without_metrics,
        with_endless_samples,
        with_huge_samples,
        of_other_bytes,
        of_texts,
    ],
)
def test_a_reply_that_no_honest_app_sends_is_rejected_and_the_others_go_on(
    changed: Callable[[Any], Any], tmp_path: Path
) -> None:
    strategy = Clustered("fedavg", model=Net, out=tmp_path / "mine")
    play(strategy, AppGrid(client_app(folds=False), NODE_IDS, replying(changed)), 2)
    assert [record["rejected"] for record in fs.load(tmp_path / "mine").rounds] == [[2], [2]]
    assert all(np.isfinite(array.numpy()).all() for array in strategy.models[0].values())


def test_a_node_that_does_not_tell_what_an_algorithm_compares_is_rejected_alone(tmp_path: Path) -> None:
    def twist(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id == 902 and message.metadata.message_type == "evaluate":
            for record in reply.content.metric_records.values():
                record.pop("eval_loss")
        return reply

    strategy = Clustered("strata", model=Net, out=tmp_path / "mine")
    play(strategy, AppGrid(client_app(folds=True), NODE_IDS, twist), 6)
    others = [each for node, each in zip(NODE_IDS, groups(strategy), strict=True) if node != 902]
    assert others == [group for node, group in zip(NODE_IDS, GROUPS, strict=True) if node != 902]
    assert any(2 in record["rejected"] for record in fs.load(tmp_path / "mine").rounds)


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"privacy": {"kind": "local", "clip_norm": 1.0, "noise_multiplier": 1.0}}, "privacy.kind"),
        ({"network": {"compression": "int8"}}, "network.compression"),
        ({"attack": {"kind": "zero"}}, "attack.kind"),
        ({"data": {"validation": 0.2}}, "data.validation"),
        ({"data": {"folds": 5}}, "data.folds"),
        ({"cohort": {"sampling": "size"}}, "cohort.sampling"),
        ({"report": {"baseline": True}}, "report.baseline"),
        ({"records": {"inputs": True}}, "records.inputs"),
    ],
)
def test_what_an_app_does_not_do_is_no_key_of_a_run_with_it(tables: Any, key: str, tmp_path: Path) -> None:
    grid = AppGrid(client_app(folds=True), NODE_IDS)
    with pytest.raises(ExperimentError, match=key):
        play(Clustered("fedavg", model=Net, out=tmp_path / "mine", tables=tables), grid, 2)
    assert grid.sent == [] and not (tmp_path / "mine").exists()


def test_nodes_that_are_lost_are_absent_and_one_that_comes_later_joins(tmp_path: Path) -> None:
    time = iter(range(10**6))
    strategy = Clustered("fedavg", model=Net, out=tmp_path / "mine", clients=NODES)
    strategy.clock = Clock(lambda: float(next(time)), lambda seconds: None)

    def twist(message: Message, reply: Message) -> Message | None:
        if len(grid.sent) > 3 * NODES:
            grid.partitions.setdefault(999, 7)
        return None if message.metadata.dst_node_id == 903 else reply

    grid = AppGrid(client_app(folds=False), [*NODE_IDS][:-1], twist)
    strategy.start(grid, first(), num_rounds=5, timeout=20, train_config=ConfigRecord({"lr": 0.1}))
    rounds = fs.load(tmp_path / "mine").rounds
    assert [record["absent"] for record in rounds] == [[3]] * 5
    assert rounds[0]["labels"][7] == -1
    assert rounds[-1]["labels"][7] == 0
    assert "999" in strategy.clusters
    assert fs.load(tmp_path / "mine").labels == strategy.clusters


def test_a_resumed_run_knows_its_nodes_by_name_and_refuses_strangers(tmp_path: Path) -> None:
    fesem = {"name": "fesem", "k": 2}
    play(Clustered(fesem, model=Net, out=tmp_path / "mine"), AppGrid(client_app(folds=False), NODE_IDS), 4)
    before = fs.load(tmp_path / "mine").labels
    grid = AppGrid(client_app(folds=False), NODE_IDS)
    for node in (904, 905):
        del grid.partitions[node]
    grid.partitions[950] = 4

    def twist(message: Message, reply: Message) -> Message:
        grid.partitions.setdefault(905, 5)
        return reply

    grid.twist = twist
    strategy = Clustered(fesem, model=Net, out=tmp_path / "mine", resume=True)
    play(strategy, grid, 7)
    assert strategy.clusters == before
    assert [record["absent"] for record in fs.load(tmp_path / "mine").rounds][4:] == [[4, 5], [4], [4]]
    # As in Flower's simulation; they were waited for.
    late = Clustered(fesem, model=Net, out=tmp_path / "mine", resume=True)
    with pytest.raises(InputError, match="found nodes without names, whose ids are new at every start"):
        play(late, AppGrid(client_app(folds=False), range(10, 18)), 9)


def test_a_newcomer_is_assigned_by_its_training_loss(tmp_path: Path) -> None:
    strategy = Clustered({"name": "fesem", "k": 2}, model=Net, out=tmp_path / "mine")
    play(strategy, AppGrid(client_app(folds=True), NODE_IDS), 4)
    newcomers = AppGrid(client_app(folds=True), range(1000, 1010))
    found = strategy.assign(newcomers, [1008, 1009])
    assert found == {1008: strategy.clusters["900"], 1009: strategy.clusters["901"]}


def test_it_is_no_part_of_another_strategy_and_has_no_clusters_before_it_starts() -> None:
    strategy = Clustered("fedavg")
    with pytest.raises(ContractError):
        strategy.configure_train(1, first(), ConfigRecord(), AppGrid(client_app(folds=False), NODE_IDS))
    with pytest.raises(InputError):
        _ = strategy.clusters


@pytest.mark.parametrize(
    ("algorithm", "tables", "rounds"),
    [
        ("strata", {}, 6),
        ("fedper", {}, 6),
        ("ditto", {}, 6),
        ("fedavg", {"personal": {"method": "best"}}, 6),
    ],
)
def test_an_app_that_serves_does_a_round_with_one_message(
    algorithm: str, tables: dict[str, Any], rounds: int, tmp_path: Path
) -> None:
    grid = AppGrid(client_app(folds=True, served=True), NODE_IDS)
    strategy = Clustered(algorithm, model=Net, out=tmp_path / "mine", serve=True, tables=tables)
    result = play(strategy, grid, rounds)
    assert {message.metadata.message_type for message in grid.sent} == {"train.fedstrata"}
    in_rounds = [message for message in grid.sent if int(message.metadata.group_id) <= rounds]
    assert len(in_rounds) == rounds * NODES
    assert accuracy_of(result, rounds) > 0.6  # FedAvg: 0.46
    if algorithm == "strata":
        assert groups(strategy) == GROUPS


@pytest.mark.parametrize("algorithm", ["strata", {"name": "ifca", "k": 2}, "layercfl"])
def test_messages_one_by_one_and_a_whole_round_have_the_same_bits(algorithm: Any, tmp_path: Path) -> None:
    def models(serves: bool) -> list[bytes]:
        app = plain_app(fold, serves=serves)
        strategy = Clustered(algorithm, model=plain_values, out=tmp_path / f"{serves}", serve=serves)
        play(strategy, AppGrid(app, NODE_IDS), 5, plain_arrays())
        return [array.numpy().tobytes() for arrays in strategy.models.values() for array in arrays.values()]

    assert models(False) == models(True)


def test_halves_share_no_unit_and_no_sample() -> None:
    units = np.repeat(np.arange(7), [1, 5, 2, 2, 4, 3, 3])
    parts = {part: fold(np.arange(20), asking(part), units=units).tolist() for part in ("A", "B", "A1", "A2")}
    assert sorted(parts["A"] + parts["B"]) == [*range(20)]
    assert sorted(parts["A1"] + parts["A2"]) == parts["A"]
    assert not set(units[parts["A"]]) & set(units[parts["B"]])
    assert fold(np.arange(20), asking("test"), test="held out") == "held out"


def asking(part: str) -> Message:
    """A message about a part of the data."""
    return Message(RecordDict({"config": ConfigRecord({"fold": part, "max-samples": 0})}), 1, "train")


@pytest.mark.parametrize(
    ("data", "units"), [([1, 2, 3], None), ({"x": [1]}, None), (np.arange(4), [0, 1]), (np.arange(1), None)]
)
def test_fold_refuses_what_it_cannot_divide(data: Any, units: Any) -> None:
    with pytest.raises(InputError):
        fold(data, asking("A"), units=units)


@pytest.mark.parametrize("wrong", [{"fraction_evaluate": 0.0}, {"fraction_train": 0.0}, {"model": Net()}])
def test_arguments_that_mean_nothing_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Clustered("fedavg", **wrong)
