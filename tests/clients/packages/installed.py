"""The clients, built and installed into empty environments, and their jobs as processes."""

import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.support.node import compiler, generated_clients
from tests.support.processes import PATIENCE

CLIENTS = Path(__file__).resolve().parents[3] / "clients"
_JOBS = Path(__file__).parent
KINDS = ("sync", "async", "typescript")
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NODE_"))}
_STRICT = ("--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--module", "nodenext")


@dataclass(frozen=True)
class Job:
    """The beginning of a command that runs a job on an installed client."""

    command: Sequence[str | Path]
    folder: Path

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        """Start the job."""
        return await asyncio.create_subprocess_exec(
            *self.command,
            *arguments,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            env={**_ENVIRONMENT, **environment},
        )

    async def run(self, *arguments: str, **environment: str) -> Any:
        """Return the JSON that the job prints."""
        return json.loads(await self.output(*arguments, **environment))

    async def output(self, *arguments: str, **environment: str) -> str:
        """Return the job's output."""
        process = await self.start(*arguments, **environment)
        try:
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, said.decode()
        return said.decode()


def job_of(folder: Path, kind: str, tmp_path: Path, node: str | Path = "node") -> Job:
    """Return the job of a kind of client. The packages are built into `folder` once."""
    if kind == "typescript":
        return Job((node, typescript_package(folder) / "job.js"), tmp_path)
    return Job((python_package(folder), _JOBS / "job.py", kind), tmp_path)


@functools.cache
def python_package(parent: Path) -> Path:
    """Build the client for Python, and return the Python of an environment with nothing but it and what it requires."""
    folder = parent / "python"
    folder.mkdir()
    source = folder / "source"
    shutil.copytree(CLIENTS / "python", source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    build: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source]
    _succeed(build, folder)
    venv.create(folder / "environment", symlinks=True)
    python = folder / "environment/bin/python"
    [wheel] = folder.glob("*.whl")
    install: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    _succeed(install, folder)
    [packages] = (folder / "environment").glob("lib/python*/site-packages")
    with (packages / "required.pth").open("w") as paths:
        for number, distribution in enumerate(_required("httpx")):
            # A folder of links for each, so that nothing else of the tests' environment is found.
            (links := folder / f"required-{number}").mkdir()
            for top in {Path(file).parts[0] for file in distribution.files or [] if Path(file).parts[0] != ".."}:
                (links / top).symlink_to(Path(str(distribution.locate_file(top))))
            paths.write(f"{links}\n")
    return python


def _required(*names: str) -> Iterator[metadata.Distribution]:
    """Yield the distributions that these packages need on this interpreter, with their own."""
    found: dict[str, metadata.Distribution] = {}
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = metadata.distribution(name)
            needs = map(Requirement, found[name].requires or [])
            left += [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
    yield from found.values()


@functools.cache
def typescript_package(parent: Path) -> Path:
    """Build the client for TypeScript, install it into an empty folder and compile the job against it."""
    folder = parent / "typescript"
    folder.mkdir()
    source, target = folder / "source", folder / "environment"
    shutil.copytree(CLIENTS / "typescript", source, ignore=shutil.ignore_patterns("dist", "node_modules"))
    (source / "node_modules").symlink_to(generated_clients())
    target.mkdir()
    (target / "package.json").write_text('{"type": "module"}')
    _succeed((compiler(), "-p", "."), source)
    _succeed(("npm", "pack", "--ignore-scripts", "--pack-destination", folder), source)
    [archive] = folder.glob("*.tgz")
    _succeed(("npm", "install", "--offline", "--no-audit", "--no-fund", archive), target)
    compiled(target, "job", (_JOBS / "job.ts").read_text())
    return target


def compiled(environment: Path, name: str, source: str) -> Path:
    """Compile a program in the environment, with all checks."""
    (environment / f"{name}.ts").write_text(source)
    types = ("--types", "node", "--typeRoots", generated_clients() / "@types")
    _succeed((compiler(), *_STRICT, "--target", "es2023", *types, f"{name}.ts"), environment)
    return environment / f"{name}.js"


def _succeed(command: Sequence[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
