"""Bad input on the command line: one line that names the key, its value and what is allowed, and status 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata import cli
from fedstrata.base.errors import DataError
from imported import looked_for, strangers

# ruff: noqa: E501 (a row is an experiment and the line about it)
# fmt: off
UNKNOWN = [
    ("rouns = 3", "rouns: unknown key; did you mean rounds?"),
    ("xyz = 3", "xyz: unknown key; expected one of seed, rounds, label, data, partition, model, local, cohort, server"),
    ("[evnets]", "evnets: unknown key"),
    ("'a' = {}\n\"b\\nc\\u2028d\" = 3", "a: unknown key"),
    ("data.client = 3", "data.client: unknown key; did you mean clients?"),
    ("local.learning = 3", "local.learning: unknown key; expected one of epochs, batch"),
    ("probe.gaps = ['cos']", "probe.gaps: unknown key; did you mean gap?"),
    ("partition = {scheme = 'iid', groups = 2}", "partition.groups: unknown key; there are no others"),
    ("partition = {scheme = 'iid', \"a\\nb\" = 1}", "partition.'a\\nb': unknown key"),
    ("partition = {shceme = 'iid'}", "partition.shceme: unknown key; did you mean scheme?"),
    ("partition = {groups = 3}", "partition.scheme: expected one of iid, rotation"),
    ("partition.scheme = 'rotations'", "partition.scheme = 'rotations': unknown partition; expected one of iid, rotation"),
    ("model = {nme = 'mlp'}", "model.nme: unknown key; did you mean name?"),
    ("model.name = 'vgg12'", "model.name = 'vgg12': unknown model; expected one of mnist_cnn,"),
    ("algorithm.clusters = 1", "algorithm.clusters: unknown key"),
    ("algorithm = {nmae = 'cfl'}", "algorithm.nmae: unknown key; did you mean name?"),
    ("algorithm = {name = 'cfl', quorom = 1}", "algorithm.quorom: unknown key; did you mean quorum?"),
    ("algorithm = {name = 'fedavg', k = 2}", "algorithm.k: unknown key; there are no others"),
    ("algorithm.name = 'layercfll'", "algorithm.name = 'layercfll': unknown algorithm; expected one of fedavg,"),
    ("algorithm = 'no.module:Class'", "algorithm.name = 'no.module:Class' names no algorithm: ModuleNotFoundError"),
    ("algorithm = 'math:sqrt'", "algorithm.name = 'math:sqrt': expected a dataclass with init, plan, update"),
    ("algorithms.cfl.layers = 'all'", "algorithms.cfl.layers: unknown key"),
    ("[algorithms.xyz]", "algorithms.xyz: unknown algorithm; expected one of fedavg,"),
    ("events.join = [{round = 1, clients = [1], share = 1}]", "events.join[0].share: unknown key; expected one of round, clients"),
    ("data.name = 'diggits'", "data.name = 'diggits': data set 'diggits' not found"),
    ("data = {name = 'cifar10', root = 'no'}", "data.name = 'cifar10': data set 'cifar10' not found; no train-*.parquet in no/cifar10"),
]
WRONG_TYPES = [
    ("seed = true", "seed = true: expected a valid integer"),
    ("rounds = 2.5", "rounds = 2.5: expected a valid integer"),
    ("rounds = '3'", "rounds = '3': expected a valid integer"),
    ("data = 3", "data = 3: expected a table"),
    ("partition = 3", "partition = 3: expected a table"),
    ("algorithm = 3", "algorithm = 3: expected a name, a table, or a dataclass"),
    ("algorithms = ['cfl']", "algorithms = ['cfl']: expected a table"),
    ("model.name = ''", "model.name = '': String should have at least 1 character"),
    ("model.hidden = {a = 1}", "model.hidden = {'a': 1}: expected a number, a string"),
    ("model.hidden = [2020-01-01]", "model.hidden = [datetime.date"),
    ("probe.gap = 'l2'", "probe.gap = 'l2': expected a valid list"),
    ("probe.layers = [1]", "probe.layers[0] = 1: expected a valid string"),
    ("probe.bipartition = 1", "probe.bipartition = 1: expected a valid boolean"),
    ("algorithm = {name = 'cfl', eps1 = 'low'}", "algorithm.eps1 = 'low': expected a valid number, or 'auto'"),
    ("algorithm = {name = 'layercfl', layers = 3}", "algorithm.layers = 3: expected a valid string, or"),
]
OUT_OF_RANGE = [
    ("rounds = 0", "rounds = 0: expected a number greater than or equal to 1"),
    ("seed = -1", "seed = -1: expected a number greater than or equal to 0"),
    ("rouns = 3\nseed = -1\ndata.test = 2", "seed = -1: expected"),
    ("data.clients = 0", "data.clients = 0: expected"),
    ("data.samples = -5", "data.samples = -5: expected"),
    ("data.test = 1", "data.test = 1: expected a number less than 1, or 'own'"),
    ("data.test = 0.0", "data.test = 0.0: expected"),
    ("local.lr = -1", "local.lr = -1: expected a number greater than 0"),
    ("local.lr = inf", "local.lr = inf: expected a finite number"),
    ("local.lr = nan", "local.lr = nan: expected a finite number"),
    ("local.momentum = 1.0", "local.momentum = 1.0: expected"),
    ("local.lr_decay = 1.5", "local.lr_decay = 1.5: expected"),
    ("local.optimizer = 'sdg'", "local.optimizer = 'sdg': expected 'sgd', 'adam' or 'adamw'"),
    ("cohort.fraction = 0", "cohort.fraction = 0: expected"),
    ("cohort.dropout = 1", "cohort.dropout = 1: expected"),
    ("engine.name = 'loops'", "engine.name = 'loops': expected 'auto', 'loop', 'batched'"),
    ("engine.workers = -1", "engine.workers = -1: expected"),
    ("server.aggregation = 'median '", "server.aggregation = 'median ': expected one of mean,"),
    ("attack.kind = 'worst'", "attack.kind = 'worst': expected one of none,"),
    ("probe.gap = ['l3']", "probe.gap[0] = 'l3': expected 'cos'"),
    ("probe.matrices = ['l2', 'l2']", "probe.matrices = ['l2', 'l2']: expected a list that names each entry once"),
    ("probe.rounds = [0]", "probe.rounds[0] = 0: expected"),
    ("events.leave = [{round = 1, clients = [1]}, {round = 0, clients = [2]}]", "events.leave[1].round = 0: expected"),
    ("algorithm = {name = 'cfl', eps1 = -1}", "algorithm.eps1 = -1: expected a number greater than or equal to 0, or 'auto'"),
]
CONTRADICTIONS = [
    ("local = {optimizer = 'adam', momentum = 0.9}", "local.momentum = 0.9: expected no momentum with optimizer = 'adam'"),
    ("local = {epochs = 2, steps = 10}", "local.epochs = 2: expected no epochs with steps = 10"),
    ("local = {schedule = 'constant', lr_decay = 0.9}", "local.lr_decay = 0.9: expected no lr_decay with schedule = 'constant'"),
    ("local = {schedule = 'cosine', lr_decay = 0.9}", "local.lr_decay = 0.9: expected no lr_decay with schedule = 'cosine'"),
    ("local = {schedule = 'step', schedule_rounds = 10}", "local.lr_decay = 1.0: expected a decay below 1"),
    ("local = {schedule = 'step', lr_decay = 0.1}", "local.schedule_rounds = 0: expected a decay below 1 after at least 1 round"),
    ("local.schedule_rounds = 10", "local.schedule_rounds = 10: expected no schedule_rounds with schedule = 'constant'"),
    ("local.lr_min = 0.001", "local.lr_min = 0.001: expected no lr_min with schedule = 'constant'"),
    ("local = {schedule = 'cosine', lr = 0.1, lr_min = 0.2}", "local.lr_min = 0.2: expected at most lr = 0.1"),
    ("local = {schedule = 'cosine', schedule_rounds = 30}", "local.lr_min = 0.0: expected a number above 0: from round 31 on of 50"),
    ("local.warmup_rounds = 50", "local.warmup_rounds = 50: expected fewer than rounds = 50"),
    ("local = {loss = 'mse', metric = 'accuracy'}", "local.metric = 'accuracy': expected a metric of numbers"),
    ("local.metric = 'r2'", "local.metric = 'r2': expected a metric of classes"),
    ("server.tau = 0.5", "server.tau = 0.5: expected no tau with optimizer = 'none', which does not use it"),
    ("server.clip_norm = 0.5", "server.clip_norm = 0.5: expected no clip_norm with aggregation = 'mean'"),
    ("attack.share = 0.5", "attack.share = 0.5: expected no share with kind = 'none'"),
    ("network.share = 0.5", "network.share = 0.5: expected no share with compression = 'none'"),
    ("privacy.kind = 'local'", "privacy = {'kind': 'local'}: expected either epsilon or noise_multiplier"),
    ("probe.layers = ['conv']", "probe.layers = ('conv',): expected none without matrices"),
    ("probe.target = 90", "probe.target = 90.0: expected 0 to 1, as local.metric = 'accuracy' has no others"),
    ("engine = {precision = 'tf32', device = 'cpu'}", 'engine.precision = "tf32": expected engine.device = "cuda", found "cpu"'),
    ("data.clients = 3\npartition = {scheme = 'rotation', groups = 4}", "partition.groups = 4: expected at most 3"),
    ("partition = {scheme = 'rotation', groups = 5}", "partition.groups = 5: expected at most 4"),
    ("partition = {scheme = 'rotation', sizes = [9, 9]}", "partition.sizes = [9, 9]: expected a sum of 20"),
    ("partition = {scheme = 'label_groups', labels = [[0], [10]]}", "partition.labels[1] = [10]: expected classes of 0 to 9"),
]
NOT_TOML = [
    ("rounds = = 3", "wrong.toml: not TOML: Invalid value (at line 1"),
    ("seed = 1\nseed = 2", "wrong.toml: not TOML: Cannot overwrite a value (at line 2"),
    ("seed = 1\nrounds = [1,\n2", "wrong.toml: not TOML: Unclosed array (at line 3, the end"),
    ("seed = 1\nname = '\xff'", "wrong.toml: line 2 is not UTF-8"),
    (f"seed = {'9' * 5000}", "wrong.toml: not TOML"),
    (f"seed = {'[' * 100_000}", "wrong.toml: not TOML"),
]
COMMANDS = [
    (["run", ""], "''"),
    (["run", "."], "'.': expected the path of an experiment file: Is a directory"),
    (["run", "nowhere.toml"], "'nowhere.toml': expected the path of an experiment file: No such file"),
    (["run", "x" * 5000], "expected the path of an experiment file"),
    (["run", "--set", "seed"], "--set 'seed': expected KEY=VALUE"),
    (["run", "--set", ""], "--set '': expected KEY=VALUE"),
    (["run", "--set", "local..lr=5"], "--set 'local..lr=5': expected KEY=VALUE"),
    (["run", "--set", "locla.lr=5"], "locla: unknown key; did you mean local?"),
    (["run", "--set", "local.epoch=5"], "local.epoch: unknown key; did you mean epochs?"),
    (["run", "--set", "seed.x.y=5"], "seed.x.y: expected a key, but seed is no table"),
    (["run", "--set", "local.lr.x=5"], "local.lr.x: expected a key, but local.lr is no table"),
    (["run", "--set", "local.lr=fast"], "local.lr = 'fast': expected a valid number"),
    (["run", "--set", f"local.lr={'9' * 5000}"], "local.lr = '999"),
    (["run", "--set", "algorithm.name=x"], "algorithm.name = 'x': unknown algorithm"),
    (["run", "--resume", "--out", "nowhere"], "'nowhere': expected a run folder"),
    (["run", "--out", ".."], "'..': expected a new or empty run folder"),
    (["run", "a", "b"], "unexpected extra argument (b)"),
    (["run", "--foo"], "--foo"),
    (["compare", "--algorithms", "fedavgg"], "--algorithms = 'fedavgg': unknown algorithm"),
    (["compare", "--algorithms", "cfl,cfl"], "--algorithms: expected names or numbers between commas, each once, found cfl more"),
    (["compare", "--algorithms", "cfl", "--seeds", "1,1"], "--seeds: expected names or numbers between commas, each once, found 1 more"),
    (["compare", "--algorithms", "cfl", "--seeds", "-1"], "--seeds = -1: expected a number of at least 0"),
    (["compare", "--algorithms", "ifca", "--set", "algorithm.alpha=0.1"], "--set algorithm.alpha=0.1: expected strata, whose key it is"),
    (["sweep", "../mine.toml", "--grid", "local.lr"], "--grid 'local.lr': expected KEY=VALUE,VALUE with a dotted key"),
    (["sweep", "../mine.toml", "--grid", "local.lr="], "--grid 'local.lr=': expected KEY=VALUE,VALUE with a dotted key"),
    (["sweep", "../mine.toml", "--grid", "local.lr=1", "--grid", "local.lr=2"], "local.lr is given twice"),
    (["sweep", "../mine.toml", "--grid", "data.clients=3,4"], "--grid data.clients: expected a key of algorithm, personal, local, server"),
    (["sweep", "../mine.toml", "--grid", "seed=1,2"], "--grid seed: expected a key of algorithm, personal, local, server"),
    (["sweep", "../mine.toml", "--grid", "local.metric=accuracy,f1_macro"], "--grid local.metric: expected"),
    (["sweep", "../mine.toml", "--grid", "local.loss=cross_entropy,mse"], "--grid local.loss: expected losses with one metric, found accuracy and r2"),
    (["sweep", "../mine.toml", "--grid", "local.lr=0.1,0.1"], "--grid local.lr: expected values, each once, found 0.1, 0.1"),
    (["sweep", "../mine.toml", "--grid", "local.lr=0.1,-1"], "local.lr = -1: expected"),
    (["sweep", "../mine.toml", "--grid", "local.rate=0.1"], "local.rate: unknown key"),
    (["list"], "KIND"),
    (["list", "cats"], "'cats' is not one of 'algorithms', 'datasets', 'partitions', 'models'"),
    (["runn"], "runn"),
    (["report"], "DIR"),
]
# fmt: on


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty; nothing is downloaded, and no terminal is there."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("FEDSTRATA_DATA", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, info: object, repository: str) -> None:
        raise DataError(f"the hub's {repository} was not asked")

    monkeypatch.setattr("fedstrata.data.locate._hub_location", refuse)


def refusal(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused; nothing is printed and nothing is made."""
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert err.startswith("fedstrata: ") and len(err.splitlines()) == 1 and err.endswith("\n"), err
    assert list(Path().iterdir()) == []
    return err


@pytest.mark.parametrize(("text", "said"), UNKNOWN + WRONG_TYPES + OUT_OF_RANGE + CONTRADICTIONS + NOT_TOML)
def test_a_wrong_experiment_is_told_in_one_line_and_creates_nothing(
    text: str, said: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = empty_folder.parent / "wrong.toml"
    file.write_bytes(text.encode("latin-1"))
    with looked_for() as modules:
        assert said in refusal(["run", str(file)], capsys)
    assert strangers(modules) == (["no"] if "no.module" in text else [])


@pytest.mark.parametrize(("args", "said"), COMMANDS)
def test_a_wrong_command_is_told_in_one_line(
    args: list[str], said: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_folder.parent / "mine.toml").touch()
    assert said in refusal(args, capsys)


def test_a_wrong_experiment_ends_the_process_with_status_2(empty_folder: Path) -> None:
    command = [sys.executable, "-m", "fedstrata", "run", "--set", "local.lr=-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert list(empty_folder.iterdir()) == []
