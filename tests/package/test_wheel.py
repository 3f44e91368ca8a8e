"""The package: what its sdist and wheel contain, and that an installed wheel pays outside the checkout.

Works offline: the build and the installed wheel use the packages of the environment that runs the tests. `.ci/run`
installs the wheel with its declared dependencies into an empty environment.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from tests.support.needs import skip_or_fail
from tests.support.processes import free_ports

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("app", "indexer", "idl")
_SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "deploy", "tests", *_PACKAGES)
_NEEDED = {"build": 1, "setuptools": 77}
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AGENT_VAULT"))}
_PATIENCE = 120.0


@dataclass(frozen=True)
class Built:
    """The sdist, the wheel built from it, and the wheel built from the checkout."""

    sdist: Path
    wheel: Path
    from_checkout: Path


@pytest.fixture(scope="module", name="built")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if missing := [f"{name} {major}" for name, major in _NEEDED.items() if _major(name) < major]:
        reason = f"the environment lacks {' and '.join(missing)} or newer"
        skip_or_fail(reason)
    folder = tmp_path_factory.mktemp("built")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in _SOURCES:
        source, copy = _ROOT / name, checkout / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        else:
            shutil.copy(source, copy)
    for package in ("app", "app/docs", "idl"):
        (checkout / package / "__pycache__").mkdir(exist_ok=True)
        (checkout / package / "__pycache__" / "left.cpython-311.pyc").touch()
    _build(checkout, folder / "dist")
    _build(checkout, folder / "direct", "--wheel")
    [sdist], [wheel], [direct] = (folder.glob(name) for name in ("dist/*.tar.gz", "dist/*.whl", "direct/*.whl"))
    return Built(sdist, wheel, direct)


def _major(distribution: str) -> int:
    try:
        return int(metadata.version(distribution).partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0


def _build(checkout: Path, to: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), *options, str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=to.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", name="scripts")
def _scripts(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that has the wheel, and its dependencies from the running environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(built.wheel)], check=True, env=_ENVIRONMENT)
    [packages] = folder.glob("lib/python*/site-packages")
    # A line of a .pth file extends the path, but runs no .pth file of that folder: an editable install stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@contextlib.contextmanager
def _started(scripts: Path, arguments: list[str], cwd: Path, until: str) -> Iterator[str]:
    """Run a command of the wheel; gives the first line of its output that starts with `until`."""
    command = [str(scripts / "agent-vault"), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, env=_ENVIRONMENT
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith(until):
                    break
            assert said, "the command says nothing"
            assert said[-1].startswith(until), "".join(said)
            yield said[-1]
        finally:
            process.kill()


def _record(wheel: Path) -> dict[str, str]:
    """The hash of each file of a wheel, by its name."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        lines = [line.rsplit(",", 2) for line in archive.read(name).decode().splitlines()]
    return {path: digest for path, digest, _size in lines}


def test_wheel_built_from_the_sdist_equals_the_checkouts(built: Built) -> None:
    assert _record(built.wheel) == _record(built.from_checkout)


def test_image_installs_the_same_wheel(built: Built, tmp_path: Path) -> None:
    first_stage, _, _ = (_ROOT / "deploy" / "Containerfile").read_text().partition("\nRUN ")
    context = tmp_path / "source"
    for line in re.findall(r"^COPY (.*)$", first_stage, re.MULTILINE):
        *sources, to = line.split()
        (context / to).mkdir(parents=True, exist_ok=True)
        for one in sources:
            if (_ROOT / one).is_dir():
                # Links as they are, as an engine copies them.
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(_ROOT / one, context / to, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            else:
                shutil.copy(_ROOT / one, context / to)
    _build(context, tmp_path / "dist", "--wheel")
    [wheel] = tmp_path.glob("dist/*.whl")

    assert _record(wheel) == _record(built.from_checkout)


def test_wheel_holds_every_file_of_the_packages_and_no_other(built: Built) -> None:
    files = {path.relative_to(_ROOT) for name in _PACKAGES for path in (_ROOT / name).rglob("*") if path.is_file()}
    expected = {str(path) for path in files if "__pycache__" not in path.parts}

    held = {name for name in _record(built.wheel) if not name.partition("/")[0].endswith(".dist-info")}

    assert held == expected


def test_wheel_holds_the_program_and_the_licence(built: Built) -> None:
    record = _record(built.wheel)

    digest = hashlib.sha256((_ROOT / "programs" / "agent_vault.so").read_bytes()).digest()
    assert record["app/core/agent_vault.so"] == f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in record)


def test_sdist_holds_neither_tests_nor_caches(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [Path(name) for name in archive.getnames()]

    assert [name for name in names if {"tests", "__pycache__"} & {*name.parts}] == []


def test_installed_wheel_is_what_runs(scripts: Path, tmp_path: Path) -> None:
    code = "import app, idl, indexer; print(app.__file__, idl.__file__, indexer.__file__, sep='\\n')"
    done = subprocess.run(
        [scripts / "python", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=_ENVIRONMENT
    )

    assert all(Path(line).is_relative_to(scripts.parent) for line in done.stdout.splitlines())


def test_installed_wheel_serves_a_payment_and_the_documents(scripts: Path, tmp_path: Path) -> None:
    port, rpc_port = free_ports()
    with _started(scripts, ["serve", "--port", str(port), "--localnet-port", str(rpc_port)], tmp_path, "curl ") as curl:
        done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, check=True, timeout=_PATIENCE)
        paid = json.loads(done.stdout)
        assert paid["status"] == "confirmed", paid

        for page in ("/docs", "/docs/guides/exports", "/docs/reference", "/docs/settings", "/openapi.json"):
            assert httpx.get(f"http://127.0.0.1:{port}{page}").status_code == 200, page


def test_installed_wheel_runs_the_embedded_chain(scripts: Path, tmp_path: Path) -> None:
    _, port = free_ports()
    with _started(scripts, ["localnet", "--port", str(port)], tmp_path, "USDC mint"):
        body = {"jsonrpc": "2.0", "id": 1, "method": "getHealth"}
        assert httpx.post(f"http://127.0.0.1:{port}", json=body).json()["result"] == "ok"


@pytest.mark.parametrize("arguments", [["demo"], ["verify", "--help"], ["--version"]])
def test_installed_wheel_has_every_command(scripts: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [scripts / "agent-vault", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=_ENVIRONMENT,
        timeout=_PATIENCE,
    )

    assert done.returncode == 0, done.stdout + done.stderr
