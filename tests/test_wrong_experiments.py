import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata import cli
from fedstrata.base.errors import DataError
from imported import looked_for, strangers


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


def status(*args: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code or 0


KNOWN_KEYS = (
    "seed, rounds, label, data, partition, model, local, cohort, server, algorithm, personal, attack, privacy, "
    "network, algorithms, engine"
)
WRONG = {
    "unknown key at the top": ("rouns = 3", "rouns: unknown key; did you mean rounds?"),
    "unknown key like no other": ("xyz = 3", f"xyz: unknown key; expected one of {KNOWN_KEYS}"),
    "unknown table": ("[evnets]", "evnets: unknown key"),
    "unknown key of data": ("data.client = 3", "data.client: unknown key; did you mean clients?"),
    "unknown key of local": ("local.learning = 3", "local.learning: unknown key; expected one of epochs, batch"),
    "unknown key of cohort": ("cohort.fractoin = 1", "cohort.fractoin: unknown key; did you mean fraction?"),
    "unknown key of engine": ("engine.worker = 2", "engine.worker: unknown key; did you mean workers?"),
    "unknown key of probe": ("probe.gaps = ['cos']", "probe.gaps: unknown key; did you mean gap?"),
    "unknown key of the partition": ("partition = {scheme = 'iid', groups = 2}", "partition.groups"),
    "unknown key of the algorithm": ("algorithm.clusters = 1", "algorithm.clusters: unknown key"),
    "misspelt name of a network": ("model = {nme = 'mlp'}", "model.nme: unknown key; did you mean name?"),
    "misspelt name of an algorithm": ("algorithm = {nmae = 'cfl'}", "algorithm.nmae: unknown key; did you mean name?"),
    "misspelt scheme": ("partition = {shceme = 'iid'}", "partition.shceme: unknown key; did you mean scheme?"),
    "no scheme": ("partition = {groups = 3}", "partition.scheme: expected one of iid, rotation"),
    "unknown key near one of the algorithm": ("algorithm = {name = 'cfl', quorom = 1}", "did you mean quorum?"),
    "key of an algorithm without keys": (
        "algorithm = {name = 'fedavg', k = 2}",
        "algorithm.k: unknown key; there are no",
    ),
    "unknown key of another algorithm": ("algorithms.cfl.layers = 'all'", "algorithms.cfl.layers: unknown key"),
    "unknown algorithm": (
        "algorithm.name = 'layercfll'",
        "algorithm.name = 'layercfll': unknown algorithm; expected one of fedavg,",
        "did you mean layercfl?",
    ),
    "another unknown algorithm": ("[algorithms.xyz]", "algorithms.xyz: unknown algorithm; expected one of fedavg,"),
    "unknown partition": ("partition.scheme = 'rotations'", "partition.scheme = 'rotations'", "rotation", "iid"),
    "partition without scheme": ("partition.groups = 4", "partition.scheme: expected one of iid, rotation"),
    "unknown model": ("model.name = 'vgg12'", "model.name = 'vgg12': unknown model; expected one of mnist_cnn,"),
    "no model": ("model.name = ''", "model.name = '': expected a string that is not empty"),
    "model option that is a table": (
        "model.hidden = {a = 1}",
        "model.hidden = {'a': 1}: expected a number, a string",
    ),
    "model option that is a date": (
        "model.hidden = [2020-01-01]",
        "model.hidden = [datetime.date",
        "expected a num",
    ),
    "unknown data": ("data.name = 'diggits'", "data.name = 'diggits'", "not found", "did you mean digits?"),
    "data that are not there": ("data = {name = 'cifar10', root = 'no'}", "data.name = 'cifar10'", "data.root"),
    "no data name": ("data.name = ''", "data.name = '': expected a string that is not empty"),
    "no rounds": ("rounds = 0", "rounds = 0: expected a number of at least 1"),
    "negative seed": ("seed = -1", "seed = -1: expected a number of at least 0"),
    "seed that is true": ("seed = true", "seed = true: expected a whole number"),
    "rounds that are half": ("rounds = 2.5", "rounds = 2.5: expected a whole number"),
    "rounds in quotes": ("rounds = '3'", "rounds = '3': expected a whole number"),
    "table that is a number": ("data = 3", "data = 3: expected a table"),
    "partition that is a number": ("partition = 3", "partition = 3: expected a table"),
    "algorithm that is a number": ("algorithm = 3", "algorithm = 3: expected a"),
    "algorithm that nobody knows": ("algorithm = 'cfll'", "algorithm.name = 'cfll'"),
    "algorithm of no module": ("algorithm = 'no.module:Class'", "names no algorithm: ModuleNotFoundError"),
    "algorithm that is no algorithm": ("algorithm = 'math:sqrt'", "expected a dataclass with init, plan, update"),
    "algorithms that are a list": ("algorithms = ['cfl']", "algorithms = ['cfl']: expected a table"),
    "no clients": ("data.clients = 0", "data.clients = 0: expected a number of at least 1"),
    "negative samples": ("data.samples = -5", "data.samples = -5: expected a number of at least 0"),
    "all data held out": ("data.test = 1", "data.test = 1: expected a number less than 1"),
    "no data held out": ("data.test = 0.0", "data.test = 0.0: expected a number greater than 0"),
    "negative step": ("local.lr = -1", "local.lr = -1: expected a number greater than 0"),
    "endless step": ("local.lr = inf", "local.lr = inf: expected a finite number"),
    "step that is no number": ("local.lr = nan", "local.lr = nan: expected a finite number"),
    "no epochs": ("local.epochs = 0", "local.epochs = 0: expected a number of at least 1"),
    "negative batch": ("local.batch = -1", "local.batch = -1: expected a number of at least 0"),
    "momentum of one": ("local.momentum = 1.0", "local.momentum = 1.0: expected a number less than 1"),
    "growing step": ("local.lr_decay = 1.5", "local.lr_decay = 1.5: expected a number of at most 1"),
    "unknown optimizer": ("local.optimizer = 'sdg'", "local.optimizer = 'sdg': expected 'sgd', 'adam' or 'adamw'"),
    "nobody takes part": ("cohort.fraction = 0", "cohort.fraction = 0: expected a number greater than 0"),
    "nobody answers": ("cohort.dropout = 1", "cohort.dropout = 1: expected a number less than 1"),
    "unknown engine": ("engine.name = 'loops'", "engine.name = 'loops': expected 'auto', 'loop', 'batched'"),
    "unknown device": ("engine.device = 'gpu'", "engine.device = 'gpu': expected 'auto', 'cpu', 'cuda' or 'mps'"),
    "unknown precision": ("engine.precision = 'half'", "engine.precision = 'half': expected 'float32', 'tf32' or"),
    "TF32 on a processor": (
        "engine = {precision = 'tf32', device = 'cpu'}",
        'engine.precision = "tf32": expected engine.device = "cuda", found "cpu"; set it, or use "float32"',
    ),
    "TF32 on any device": (
        "engine.precision = 'tf32'",
        'engine.precision = "tf32": expected engine.device = "cuda", found "auto"; set it, or use "float32"',
    ),
    "fewer than no workers": ("engine.workers = -1", "engine.workers = -1: expected a number of at least 0"),
    "unknown measure": (
        "probe.gap = ['l3']",
        "probe.gap[0] = 'l3': expected 'cos'",
    ),
    "measure that is no list": ("probe.gap = 'l2'", "probe.gap = 'l2': expected a list"),
    "measure named twice": ("probe.matrices = ['l2', 'l2']", "expected a list that names each entry once"),
    "round before the first": ("probe.rounds = [0]", "probe.rounds[0] = 0: expected a number of at least 1"),
    "layer that is no text": ("probe.layers = [1]", "probe.layers[0] = 1: expected a string"),
    "layers of no matrices": ("probe.layers = ['conv']", "expected matrices beside layers, which nothing else uses"),
    "rounds of no matrices": ("probe.rounds = [1]", "expected matrices beside rounds, which nothing else uses"),
    "bipartition that is no truth value": ("probe.bipartition = 1", "probe.bipartition = 1: expected true or false"),
    "target that nobody can reach": ("probe.target = 90", "probe.target = 90: expected a number of at most 1"),
    "unknown key in a list": (
        "events.join = [{round = 1, clients = [1], share = 1}]",
        "events.join[0].share: unknown key; expected one of round, clients",
    ),
    "wrong value in a list": (
        "events.leave = [{round = 1, clients = [1]}, {round = 0, clients = [2, -3]}]",
        "events.leave[1].round = 0: expected a number of at least 1 (and 1 more)",
    ),
    "negative threshold": (
        "algorithm = {name = 'cfl', eps1 = -1}",
        "algorithm.eps1 = -1: expected a number of at least 0, or 'auto'",
    ),
    "threshold in words": (
        "algorithm = {name = 'cfl', eps1 = 'low'}",
        "algorithm.eps1 = 'low': expected a number, or 'auto'",
    ),
    "layers that are a number": (
        "algorithm = {name = 'layercfl', layers = 3}",
        "algorithm.layers = 3: expected a string, or a list",
    ),
    "layer that is a number": (
        "algorithm = {name = 'layercfl', layers = [3]}",
        "expected a string, or a list of which each is a string",
    ),
    "more groups than clients": (
        "data.clients = 3\npartition = {scheme = 'rotation', groups = 4}",
        "partition.groups = 4: expected at most 3, the number of clients",
    ),
    "more groups than quarter turns": (
        "partition = {scheme = 'rotation', groups = 5}",
        "partition.groups = 5: expected at most 4",
    ),
    "groups of too many clients": (
        "partition = {scheme = 'rotation', sizes = [9, 9]}",
        "partition.sizes = [9, 9]",
        "20",
    ),
    "class that is not there": (
        "partition = {scheme = 'label_groups', labels = [[0], [10]]}",
        "partition.labels[1] = [10]",
        "0 to 9",
    ),
    "three mistakes": ("rouns = 3\nseed = -1\ndata.test = 2", "seed = -1: expected", "(and 2 more)"),
    "not TOML": ("rounds = = 3", "wrong.toml: not TOML:", "line 1"),
    "twice the same key": ("seed = 1\nseed = 2", "wrong.toml: not TOML:", "line 2"),
    "line breaks in a key": ("'a' = {}\n\"b\\nc\\u2028d\" = 3", "(and 1 more)"),
    "line breaks in a key of the partition": (
        "partition = {scheme = 'iid', \"a\\nb\" = 1}",
        "partition.'a\\nb': unknown key",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_experiment_is_told_in_one_line_and_creates_nothing(
    case: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, *parts = WRONG[case]
    file = empty_folder.parent / "wrong.toml"
    file.write_text(text)
    with looked_for() as modules:
        assert status("run", str(file)) == 2
    assert strangers(modules) == (["no"] if case == "algorithm of no module" else [])
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1 and err.endswith("\n"), err
    for part in parts:
        assert part in err, err
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["run", ""], "''"),
        (["run", "."], "'.': expected the path of an experiment file: Is a directory"),
        (["run", "nowhere.toml"], "'nowhere.toml': expected the path of an experiment file: No such file"),
        (["run", "--set", "seed"], "--set 'seed': expected KEY=VALUE"),
        (["run", "--set", "algorithm.name=x"], "algorithm.name = 'x': unknown algorithm"),
        (["run", "--resume", "--out", "nowhere"], "'nowhere': expected a run folder"),
        (["run", "--out", ".."], "'..': expected a new or empty run folder"),
        (["run", "a", "b"], "unexpected extra argument (b)"),
        (["run", "--foo"], "--foo"),
        (["list"], "KIND"),
        (["list", "cats"], "'cats' is not one of 'algorithms', 'datasets', 'partitions', 'models'"),
        (["runn"], "runn"),
        (["report"], "DIR"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(
    args: list[str], part: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedstrata: ") and part in err and len(err.splitlines()) == 1, err
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize("text", ["local.lr = -1", "seed = 'x'", "\xff"])
def test_a_wrong_experiment_ends_the_process_with_status_2(text: str, empty_folder: Path) -> None:
    file = empty_folder.parent / "wrong.toml"
    file.write_bytes(text.encode("latin-1"))
    command = [sys.executable, "-m", "fedstrata", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert list(empty_folder.iterdir()) == []
