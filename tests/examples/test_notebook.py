"""The notebook of the examples, executed as Jupyter would."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
NEEDED = ("nbclient", "nbformat", "ipykernel")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook after all of its cells have run, in an empty folder."""
    if not all(map(find_spec, NEEDED)):
        pytest.skip(f"needs {', '.join(NEEDED)}: pip install .[dev]")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.mark.pages
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_cell_runs_and_says_how_far_it_is(executed: Any) -> None:
    train, summary, plot, predict, compare, export = [each for each in executed.cells if each.cell_type == "code"]
    told = "".join(each.text for each in train.outputs if each.output_type == "stream")
    assert "round 12/12" in told
    assert "<th>algorithm</th><td>strata</td>" in summary.outputs[0].data["text/html"]
    assert any(kind.startswith("application/vnd.plotly") for kind in plot.outputs[0].data)
    assert "'7':" in predict.outputs[0].data["text/plain"]
    assert "'strata'" in compare.outputs[0].data["text/plain"]
    assert "client-0.pt2" in export.outputs[0].data["text/plain"]


def test_the_notebook_is_committed_without_outputs_and_its_cells_are_short() -> None:
    import json

    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs") and len(cell["source"]) <= 15
