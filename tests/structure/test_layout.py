"""The layout that CONTRIBUTING.md promises: small modules, unique names, SQL in one place, readable tests.

The contract of import-linter in pyproject.toml defines the imports that folders may make.
"""

import ast
import re
import tomllib
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_APP = sorted((ROOT / "app").rglob("*.py"))
_PYTHON = [*_APP, *sorted((ROOT / "indexer").rglob("*.py")), *sorted((ROOT / "idl").rglob("*.py"))]
_TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
_DOCUMENTS = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "README.md",
    ROOT / "deploy/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for path in sorted((ROOT / "tests").glob("**/README.md")) if "node_modules" not in path.parts),
]
_TOP = {"app", "deploy", "docs", "idl", "indexer", "programs", "tests", ".ci"}
_MAX_LINES = 350
_MAX_NAME = 70


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_module_of_the_service_is_longer_than_its_limit() -> None:
    assert {_name(path): lines for path in _APP if (lines := len(path.read_text().splitlines())) > _MAX_LINES} == {}


def test_at_most_three_modules_lie_loose_in_the_service() -> None:
    assert len([path for path in (ROOT / "app").glob("*.py") if path.name != "__init__.py"]) <= 3


def test_class_names_of_the_service_are_unique() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in _APP:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(_name(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_architecture_shows_the_layers_and_purposes_of_packages() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [layer.split(" | ") for layer in tools["contracts"][0]["layers"]]
    rows = re.findall(r"^\| (\d+) \| `app/(\w+)` \| (.+) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    purposes = {
        path.parent.name: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        for path in (ROOT / "app").glob("*/__init__.py")
    }

    assert {name: int(layer) for layer, name, _ in rows} == {
        name: number for number, names in enumerate(reversed(layers), 1) for name in names
    }
    assert {name: purpose for _, name, purpose in rows} == purposes


def test_no_import_is_hidden_from_the_layers() -> None:
    assert [_name(path) for path in _PYTHON if "TYPE_CHECKING" in path.read_text()] == []


def test_no_modules_import_each_other() -> None:
    modules = {_name(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in _PYTHON}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{one.name}" for one in node.names)
                graph[module] |= {name if name in modules else str(node.module) for name in names}

    TopologicalSorter(graph).prepare()  # raises CycleError


def test_sql_is_written_by_the_store_the_projection_and_the_indexer_alone() -> None:
    """Other modules only pass a connection on to the store. The embedded chain has its own database file."""
    own = ("app/database/", "app/store/", "app/projection/", "app/localnet/")
    for path in _APP:
        if _name(path).startswith(own):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
                assert [one.name for one in node.names] == ["Connection"], _name(path)
            assert not (isinstance(node, ast.Attribute) and node.attr in {"exec_driver_sql", "scalars"}), _name(path)


def test_no_sql_is_put_together_from_text() -> None:
    """Ruff's S608 finds such code. The embedded chain is exempt: it inserts only names of columns that it declares."""
    exempt = [_name(path) for path in _PYTHON if "noqa: S608" in path.read_text()]
    assert [one for one in exempt if not one.startswith(("app/localnet/", "tests/"))] == []


def test_no_test_lies_loose_but_the_whole_line_and_the_documents() -> None:
    assert {path.name for path in (ROOT / "tests").glob("test_*.py")} <= {"test_flow.py", "test_reference.py"}


def test_names_of_tests_are_short_enough_to_be_read() -> None:
    long = []
    for path in _TESTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                long += [f"{_name(path)}::{node.name}"] if len(node.name) > _MAX_NAME else []
    assert long == []


@pytest.mark.parametrize("document", _DOCUMENTS, ids=_name)
def test_every_path_in_a_document_exists(document: Path) -> None:
    text = document.read_text()
    missing = []
    for quoted in re.findall(r"`([\w./*{},<>-]+)`", text):
        path = quoted.split("::")[0].rstrip("/")
        if path.split("/")[0] in _TOP and "/" in path and not set("*{}<>") & set(path) and not (ROOT / path).exists():
            missing.append(quoted)
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    missing += [link for link in links if not (document.parent / link).exists()]
    assert missing == []
