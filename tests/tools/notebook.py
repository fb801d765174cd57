"""Run a notebook's cells in one namespace and keep what they show, as text and as HTML tables.

    python tests/tools/notebook.py data/sample.ipynb

No kernel is needed: the cells are plain Python. The file is written anew with its outputs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of every code cell; an error in a cell is raised with its source."""
    space: dict[str, Any] = {"__name__": "__notebook__"}
    cells = []
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = _outputs(_run("".join(cell["source"]), space, number), number)
            cell = {**cell, "execution_count": number, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def texts(notebook: dict[str, Any]) -> list[str]:
    """What every code cell shows, as text."""
    return [
        "".join("".join(out.get("text", out.get("data", {}).get("text/plain", ""))) for out in cell["outputs"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def save(path: Path, notebook: dict[str, Any]) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _run(source: str, space: dict[str, Any], number: int) -> tuple[str, Any]:
    """(what was printed, value of the last expression)."""
    tree = ast.parse(source, f"cell {number}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), space)
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), space) if last else None
    return printed.getvalue(), value


def _outputs(shown: tuple[str, Any], number: int) -> list[dict[str, Any]]:
    printed, value = shown
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": str(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return found


def main(path: str) -> None:
    file = Path(path)
    save(file, execute(json.loads(file.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main(sys.argv[1])
