"""Builds and runs the example client in TypeScript, based on @anchor-lang/core, as its users do."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import check, check_on_serve, run, run_on_serve, vault_with_session
from tests.support.needs import skip_or_fail
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_FOLDER = Path(__file__).parent / "typescript"
_INSTALL = "npm ci --prefix tests/clients/typescript"


@pytest.fixture(scope="module")
def client() -> list[str]:
    """The command that runs the compiled client. Without Node.js or its packages, skip, or fail if CI=true."""
    node, compiler = shutil.which("node"), _FOLDER / "node_modules/.bin/tsc"
    if node is None or not compiler.exists():
        missing = "node is not installed; with it" if node is None else "packages are not installed;"
        reason = f"{missing} `{_INSTALL}` installs what the client needs"
        skip_or_fail(reason)
    built = subprocess.run([compiler, "--project", _FOLDER], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout
    return [node, str(_FOLDER / "build/client.js")]


def _named_as_in_the_idl(said: Any) -> Any:
    """Undo the library's conversion of names to camel case."""
    if isinstance(said, list):
        return [_named_as_in_the_idl(item) for item in said]
    if not isinstance(said, dict):
        return said
    renamed = {re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", key): said[key] for key in said}
    if "data" in renamed:
        renamed["name"] = renamed["name"][0].upper() + renamed["name"][1:]
    return {key: _named_as_in_the_idl(value) for key, value in renamed.items()}


@pytest.mark.parametrize("restricted", [False, True], ids=["anybody", "allowlist"])
async def test_typescript_client_reads_pays_and_is_refused_with_only_the_idl(
    world: ServiceWorld, tmp_path: Path, client: list[str], restricted: bool
) -> None:
    vault = await vault_with_session(world, tmp_path, restricted=restricted)

    said = await run(world, client, vault)

    await check(world, vault, _named_as_in_the_idl(said))


async def test_typescript_client_waits_for_its_payment_on_a_running_service(tmp_path: Path, client: list[str]) -> None:
    check_on_serve(_named_as_in_the_idl(await run_on_serve(client, tmp_path)))
