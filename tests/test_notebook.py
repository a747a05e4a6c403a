"""The notebook of docs/: run from its first cell to its last, it gives the outputs that it is committed with, but for
what another type of machine changes.

python -m tests.test_notebook    # runs it and writes its outputs
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, variables_without

NOTEBOOK = ROOT / "docs/notebooks/first_order.ipynb"


def executed(folder: Path) -> Any:
    """The notebook with outputs of its own, from a kernel that works in a folder."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    own = variables_without("DIVORDER_")
    own |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}", "IPYTHONDIR": str(folder)}
    own["PYTHONPATH"] = str(ROOT)
    client = NotebookClient(notebook, timeout=600, record_timing=False, coalesce_streams=True)
    client.execute(cwd=str(folder), env=own)
    return notebook


def outputs(notebook: Any, kind: str) -> list[str]:
    """What its cells have put out: "text", or pictures as "image/png" in base64."""
    every = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if kind == "text":
        return [output["text"] if "text" in output else output["data"]["text/plain"] for output in every]
    return [output["data"][kind] for output in every if kind in output.get("data", {})]


def words_and_figures(notebook: Any) -> tuple[list[str], list[float]]:
    """What its cells say without figures, and without spaces, which follow their width; and the figures."""
    text, number = " ".join(outputs(notebook, "text")), r"\d[\d,]*(?:\.\d+)?"
    return re.sub(number, "#", text).split(), [
        float(found.replace(",", "")) for found in re.findall(number, text)
    ]


@pytest.mark.slow
def test_its_outputs_are_those_that_it_is_committed_with(tmp_path: Path) -> None:
    import nbformat

    committed, made = nbformat.read(NOTEBOOK, as_version=4), executed(tmp_path)
    assert 12 <= len(made.cells) <= 24
    (words, figures), (as_committed, before) = map(words_and_figures, (made, committed))
    assert words == as_committed
    # Rounding differs between types of processors, and from it follow other clusters.
    assert all(one / 2 <= other <= 2 * one for one, other in zip(before, figures, strict=True))
    pictures, again = (list(map(base64.b64decode, outputs(one, "image/png"))) for one in (committed, made))
    assert len(pictures) == len(again) == 2 and sum(map(len, pictures)) < 300_000
    assert all(picture.startswith(b"\x89PNG") for picture in [*pictures, *again])


if __name__ == "__main__":
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(executed(Path(folder)), NOTEBOOK)
