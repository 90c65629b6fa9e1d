"""How much there is to read: `python -m benchmarks.house`.

Counts the files that tell what CDMA-ADA does, from an experiment file to a line of rounds.csv, all lines of
the package, files over 400 lines, functions over 60, circles of imports between files, and names that two
files define.
tests/test_house.py holds the package to these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedsaddle"
PATH = (
    "core.py",
    "algorithms/cdma.py",
    "engine/round.py",
    "engine/gather.py",
    "engine/phase.py",
    "engine/executors/loop.py",
)
FILE, FUNCTION = 400, 60  # lines


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def long_files() -> dict[str, int]:
    return {name_of(path): lines(path) for path in files() if lines(path) > FILE}


def long_functions() -> dict[str, int]:
    found = {}
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION:
                    found[f"{name_of(path)}:{node.name}"] = length
    return found


def names() -> dict[str, list[str]]:
    """The files that each public name of a module is defined in."""
    found: dict[str, list[str]] = {}
    for path in files():
        for name in sorted(defined(ast.parse(path.read_text(encoding="utf-8")))):
            if not name.startswith("_"):
                found.setdefault(name, []).append(name_of(path))
    return found


def defined(module: ast.Module) -> set[str]:
    """The functions, classes and values of a module."""
    own = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        own |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return own


def imports() -> dict[str, set[str]]:
    """Which files each file imports when it is imported itself, not in a function or for types alone."""
    homes = {module_of(path): name_of(path) for path in files()}
    return {
        name_of(path): {homes[module] for module in imported(path) if module in homes} - {name_of(path)}
        for path in files()
    }


def module_of(path: Path) -> str:
    parts = ["fedsaddle", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    for node in at_once(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_once(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that are executed when a file is imported, but for those for types alone."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from at_once(node.body)


def circles() -> list[list[str]]:
    """Files that import each other, over others perhaps."""
    above, found = imports(), []
    for start in above:
        seen, waiting = set[str](), [*above[start]]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += above[one]
        if start in seen:
            found.append([start, *sorted(seen)])
    return found


def main() -> None:
    for name in PATH:
        print(f"{lines(SOURCE / name):6}  {name}")
    print(f"{sum(lines(SOURCE / name) for name in PATH):6}  in {len(PATH)} files to follow CDMA-ADA")
    print(f"{sum(map(lines, files())):6}  in {len(files())} files, all of src")
    for what, found in (("files", long_files()), ("functions", long_functions())):
        limit = FILE if what == "files" else FUNCTION
        told = ", ".join(f"{name} {count}" for name, count in found.items()) or "none"
        print(f"{what} over {limit} lines: {told}")
    shared = {name: found for name, found in names().items() if len(found) > 1}
    print(f"names that several files define: {', '.join(shared) or 'none'}")
    print(f"circles of imports: {'; '.join(circle[0] for circle in circles()) or 'none'}")


if __name__ == "__main__":
    main()
