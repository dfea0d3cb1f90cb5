"""The house's own rules, which ruff and import-linter can't say: `python -m tests.house.rules`.

* SQL stands only in `database/`, in `repository` modules, in `models` and in the one predicate of
  `access/visibility`: whoever looks for a query knows where.
* A callback is asynchronous and reaches services only through `await call(...)`: a synchronous one,
  or a service called straight, would stop the event loop for everybody.
* No file is longer than a reader can hold in mind.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 400

_ROOMS = ("agent", "server", "dashboard", "benchmarks", "tests")
_SQL_FOLDERS = {"database", "repository"}
_SQL_MODULES = {"repository", "models", "visibility"}
# What a service may name without building a statement: the session it is given, and types.
_PLAIN_NAMES = {"Session", "Row", "RowMapping", "Select", "Engine"}
_RUNS_SQL = {"execute", "executemany", "scalar", "scalars", "stream"}
_REACHES_SERVICES = {"services.py"}


def violations(root: Path) -> Iterator[str]:
    """What breaks a rule below `root`, each as `path:line: what is wrong`."""
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            place = path.relative_to(root)
            text = path.read_text()
            lines = text.count("\n")
            if lines > MAX_LINES:
                yield f"{place}:{lines}: longer than {MAX_LINES} lines: split it by subject"
            tree = ast.parse(text)
            if room == "server" and not _may_hold_sql(path):
                yield from (f"{place}:{line}: {problem}" for line, problem in _sql(tree))
            if room == "dashboard":
                yield from (f"{place}:{line}: {problem}" for line, problem in _sql(tree))
                if path.name not in _REACHES_SERVICES:
                    yield from (f"{place}:{line}: {problem}" for line, problem in _calls(tree))


def _may_hold_sql(path: Path) -> bool:
    return path.stem in _SQL_MODULES or bool(_SQL_FOLDERS & set(path.parent.parts))


def _sql(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
            built = {alias.name for alias in node.names} - _PLAIN_NAMES
            if built and node.module != "sqlalchemy.exc":
                yield node.lineno, f"SQL stands in repositories: {', '.join(sorted(built))}"
        elif isinstance(node, ast.Import) and any(a.name == "sqlalchemy" for a in node.names):
            yield node.lineno, "SQL stands in repositories: import single names of sqlalchemy"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _RUNS_SQL
        ):
            yield node.lineno, f"SQL stands in repositories: .{node.func.attr}()"


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Synchronous callbacks, and services that an asynchronous function calls straight."""
    services = _services(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_is_callback, node.decorator_list)):
            yield node.lineno, f"the callback {node.name} is not async: it stops the event loop"
        if isinstance(node, ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                name = _root(inner.func) if isinstance(inner, ast.Call) else None
                if name in services:
                    yield inner.lineno, f"{name} reads in the event loop: `await call({name}, …)`"


def _services(tree: ast.Module) -> set[str]:
    """Names of this module that read from the server: its services, and readers of a visit."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and _is_of_a_domain(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names if alias.name.islower()}
        if isinstance(node, ast.FunctionDef) and node.args.args:
            annotation = node.args.args[0].annotation
            if isinstance(annotation, ast.Name) and annotation.id in ("Visit", "Session"):
                names.add(node.name)
    return names


def _is_of_a_domain(module: str) -> bool:
    """Whether a module of the server may hold services; what lies on its ground does not."""
    first, _, rest = module.partition(".")
    ground = ("settings", "clock", "house", "app", "schema", "children")
    return first == "flopwatch_server" and rest.partition(".")[0] not in ground


def _is_callback(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and (
        isinstance(decorator.func, ast.Attribute) and decorator.func.attr == "callback"
    )


def _root(function: ast.expr) -> str | None:
    """`listing` of `listing.job_page`, `read` of `read`."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else None


if __name__ == "__main__":
    broken = list(violations(ROOT))
    print("\n".join(broken) or "the house's rules hold")
    sys.exit(bool(broken))
