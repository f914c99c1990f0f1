"""The modules of both packages, read as Python once in a process: some tests look at all of them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "cobali_ray"
LABORATORY = ROOT / "workloads" / "cobali_workloads"


@cache
def trees(package):
    """Return what each file of a package says; nobody changes it."""
    return {path: ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}


@cache
def imports(package):
    """Return the `import`s of each file, wherever they stand."""
    return {
        path: [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        for path, tree in trees(package).items()
    }
