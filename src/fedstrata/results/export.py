"""Write the models of a finished run as files that are used without the run folder, and without this library."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors.torch import save

from fedstrata.base.errors import ExperimentError, ModelError
from fedstrata.base.files import replace_file
from fedstrata.base.quoting import shown
from fedstrata.config.folders import nearest_existing, require_new_folder
from fedstrata.models import layout_of
from fedstrata.models.trained import TrainedModel
from fedstrata.results.run import Run

ModelFormat = Literal["safetensors", "torch", "onnx", "peft"]
"""What a model is written as. "safetensors" is its tensors. "torch" is a program that `torch.export.load` reads, and
"onnx" one for ONNX: both have the network and the normalisation inside, and take raw samples. "peft" is a folder with
the adapters alone, which ``PeftModel.from_pretrained(base, folder)`` loads."""

INDEX = "models.json"
"""The file that says which model each client uses, and what every model needs."""

_FILE_CHARACTERS = 80
"""The characters of a client's name that the name of its file has at most."""


def export(
    run: Run,
    target: Path | str,
    clients: str | int | Sequence[str | int] = (),
    format: ModelFormat = "safetensors",
) -> list[Path]:
    """Write models of a run as files that are used without the run folder, with an index ``models.json``.

    The files are moved there when all of them are written. An export that fails leaves nothing behind.

    Args:
        run: The finished run.
        target: The folder; it must be new or empty.
        clients: The names or ids, as in `Run.model`, of the clients whose models are written, or that of one client.
            By default every model in use is: that of each cluster, and that of each client that has layers of its own.
        format: "safetensors", or "torch" or "onnx" for programs that take raw samples, or "peft" for adapters.

    Returns:
        The files, the index first; of adapters their folders.

    Raises:
        InputError: When there is no such client or format, the folder holds something, or the network cannot be
            written in this format.
    """
    several = [clients] if isinstance(clients, str | int | np.integer) else clients
    names = [run.names[run.model_of(client).client] for client in several]
    if format not in (known := get_args(ModelFormat)):
        raise ExperimentError(f"export: format = {shown(format)}: expected one of {', '.join(known)}")
    needed = {"onnx": "onnxscript", "peft": "peft"}.get(format)
    if needed and find_spec(needed) is None:
        raise ExperimentError(f'--format = {format}: expected {needed}, found none; pip install "fedstrata[{format}]"')
    folder = Path(target)
    require_new_folder(folder)
    # The folders on the way to the target are made at the end as well, and a move within a file system takes no time.
    with TemporaryDirectory(prefix=".export-", dir=nearest_existing(folder)) as draft:
        written = _write_models(run, Path(draft), names, format)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / file.name for file in written]
        for file, place in zip(written, files, strict=True):
            file.replace(place)
    return files


def _write_models(run: Run, folder: Path, clients: Sequence[str], format: ModelFormat) -> list[Path]:
    """Write models into an empty folder, and return the files, the index first; otherwise as `export`."""
    index = _index_of(run)
    files = [folder / INDEX]
    for entry, model in _one_by_one(run, clients) if clients else _in_use(run):
        if format == "peft":
            entry["file"] = Path(entry["file"]).stem
            files.append(folder / entry["file"])
            _write_adapters(model.network, files[-1])
            index.setdefault("models", []).append(entry)
            continue
        # Layers may share a weight, and safetensors writes no tensors that share memory.
        tensors = {name: values.contiguous().clone() for name, values in model.network.state_dict().items()}
        metadata = {"fedstrata": json.dumps({**index, **entry})}
        file = folder / entry["file"]
        replace_file(file, save(tensors, metadata))
        files.append(file)
        if format != "safetensors":
            program = file.with_suffix(".pt2" if format == "torch" else ".onnx")
            entry["program"] = program.name
            replace_file(program, _program(model, format))
            files.append(program)
        index.setdefault("models", []).append(entry)
    replace_file(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())
    return files


def _index_of(run: Run) -> dict[str, Any]:
    """What every model of a run needs."""
    model = run.experiment.model
    scale, shift = run.sample_format.affine
    return {
        "fedstrata": run.summary.get("versions", {}).get("fedstrata", ""),
        "algorithm": run.experiment.algorithm.name,
        "network": {"name": model.name, "options": model.options},
        "samples": asdict(run.sample_format),
        "normalisation": "value * scale + shift, for each channel",
        "scale": scale.tolist(),
        "shift": shift.tolist(),
    }


def _one_by_one(run: Run, clients: Sequence[str]) -> Iterator[tuple[dict[str, Any], TrainedModel]]:
    """The models of some clients, each with its entry of the index."""
    taken = set[str]()
    for client in clients:
        used = run.model_of(client)
        model = run.model(client)
        file = f"{_file_name(client, used.client, taken)}.safetensors"
        yield {"node": used.node, "clients": [str(client)], "personal": list(used.personal), "file": file}, model


def _in_use(run: Run) -> Iterator[tuple[dict[str, Any], TrainedModel]]:
    """Every model that some client uses, and that of each cluster that is the base of some; as `_one_by_one`."""
    prepared = run.sample_format.preparation
    own = prepared is not None and prepared.options.own
    plain: dict[int, list[str]] = {} if own else {node.id: [] for node in run.tree if node.split is None}
    personal = list[str]()
    for client in run.clients:
        used = run.model_of(client)
        if (own or used.personal) and not used.on_device:
            personal.append(client)
        elif used.node is not None:
            plain[used.node].append(client)
    for node, clients in plain.items():
        file = f"cluster-{node}.safetensors"
        yield {"node": node, "clients": clients, "personal": [], "file": file}, run.cluster_model(node)
    yield from _one_by_one(run, personal)


def _file_name(client: str, id: int, taken: set[str]) -> str:
    """A file name for a client. Names that differ only in what no file name may have get the client's id."""
    plain = re.sub(r"[^\w.-]+", "_", str(client))[:_FILE_CHARACTERS]
    name = f"client-{plain}"
    while name.lower() in taken:
        name = f"{name}-{id}"
    taken.add(name.lower())
    return name


def _write_adapters(network: torch.nn.Module, folder: Path) -> None:
    """Write the adapters of a network as `peft` has them.

    Raises:
        ModelError: When the network has none, or trains something else.
    """
    from peft import PeftModel, get_peft_model_state_dict

    adapted = [part for part in network.modules() if isinstance(part, PeftModel)]
    if len(adapted) != 1:
        raise ModelError(f"--format = peft: expected a network with one PeftModel in it, found {len(adapted)}")
    # The hub is not asked whether it has the base.
    written = get_peft_model_state_dict(adapted[0], save_embedding_layers=False).values()
    places = {values.data_ptr() for values in written}
    state = network.state_dict()
    for spec in layout_of(network).tensors:
        if state[spec.name].data_ptr() not in places:
            raise ModelError(f"--format = peft: expected adapters alone to be trained, found {spec.name} besides")
    adapted[0].save_pretrained(str(folder), save_embedding_layers=False)


def _program(model: TrainedModel, format: ModelFormat) -> bytes:
    """The model as a program for `torch.export.load` or for ONNX, for batches of any size.

    Raises:
        ModelError: When torch cannot record the network, or ONNX lacks an operation of it.
    """
    form = model.sample_format
    # With one sample, the exporter would take a batch of one for the only one that there is.
    example = torch.zeros(2, *form.shape, dtype=getattr(torch, form.dtype))
    content = io.BytesIO()
    exporter = "torch.export"
    try:
        batch = torch.export.Dim("batch", min=1)
        captured = torch.export.export(model, (example,), dynamic_shapes={"inputs": {0: batch}})
        if format == "torch":
            torch.export.save(captured, content)
            return content.getvalue()
        exporter = "torch.onnx"
        return _onnx_program(captured)
    # torch raises errors of many types about networks whose Python it cannot follow.
    except Exception as error:
        first = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{exporter} cannot write this network: {type(error).__name__}: {first}; export it with --format "
            "safetensors"
        ) from error


def _onnx_program(captured: torch.export.ExportedProgram) -> bytes:
    """The recorded operations of a model as a program for ONNX."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        # The exporter prints its progress, warns of torch's own deprecations, and logs that torchvision is missing.
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.setLevel(logging.ERROR)
            program = torch.onnx.export(
                captured, input_names=["samples"], output_names=["outputs"], dynamo=True, verbose=False
            )
    finally:
        log.setLevel(level)
    assert program is not None  # with `dynamo` there always is one
    return bytes(program.model_proto.SerializeToString())
