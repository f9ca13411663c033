"""The example notebook runs, cell by cell, as Jupyter runs it, and is stored without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def test_the_notebook_is_stored_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
        for target in re.findall(r"\]\(([^)#:\s]+)\)", cell.source) if cell.cell_type == "markdown" else ():
            assert (NOTEBOOK.parent / target).is_file(), target


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook's own packages
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:other work")  # that other tests keep the cores busy
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    norms = {
        label.strip(): float(norm)
        for label, norm in re.findall(r"^(.+?) worst gradient norm +(\S+)", printed, re.MULTILINE)
    }
    assert len(norms) == 4
    assert norms["DoCoM, top-k 10%"] < min(norms["BEER, top-k 10%"], norms["CHOCO-SGD, top-k 20%"])
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert ["text/html" in data for data in shown] == [True, False]  # the table of records
    assert len(shown[-1]["image/png"]) > 10_000, "the plot is a picture, not the name of an object"
