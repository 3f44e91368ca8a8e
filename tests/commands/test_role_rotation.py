"""`agent-vault roles rotate`: no key that the chain names is lost, and none that it does not name is put in place."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.commands.main import main
from app.core.paths import program_file
from app.core.signers import create_key, read_key
from app.localnet import Localnet
from idl.codec import load
from tests.support.processes import free_ports, running
from tests.support.service_world import ServiceWorld
from tests.support.warm import COMMAND_LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _keys(folder: Path, role: str) -> dict[str, str]:
    """Addresses by the files of a role."""
    return {path.name: str(read_key(path).pubkey()) for path in (folder / "keys").glob(f"{role}*.json")}


async def _run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def _done(*arguments: str) -> str:
    result = await _run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


async def test_operator_that_the_folder_does_not_expect_costs_no_key(tmp_path: Path) -> None:
    folder = ("--data-dir", str(tmp_path))
    async with (
        Localnet.open(None, {load().program_id: program_file()}) as chain,
        chain.serving("127.0.0.1", 0) as (port, _),
    ):
        await _done("orgs", "create", "acme", *folder, "--rpc-url", f"http://127.0.0.1:{port}")
        first = _keys(tmp_path, "operator")["operator.json"]
        await _done("roles", "rotate", "operator", *folder)
        second = _keys(tmp_path, "operator")["operator.json"]

        # Given an operator on the chain that is not the folder's present key: one elsewhere, or its old one
        elsewhere = str(create_key(tmp_path / "elsewhere.json").pubkey())
        for holder, place in ((elsewhere, "not in the data folder"), (first, "operator.old.json")):
            await _done("roles", "set", "--operator", holder, *folder)

            # When the operator is rotated, then that is refused and no key is touched
            refused = await _run("roles", "rotate", "operator", *folder)
            assert refused.exit_code == 1
            [line] = refused.output.splitlines()
            assert holder in line
            assert place in line
            kept = _keys(tmp_path, "operator")
            following = kept.pop("operator.next.json")
            assert kept == {"operator.json": second, "operator.old.json": first}
            assert f"`agent-vault roles set --operator {following}`" in line

        # The service says so when it starts
        api, _rpc = free_ports()
        serve = ("serve", *folder, "--port", str(api), "--rpc-url", f"http://127.0.0.1:{port}")
        expected = f"Warning: on the chain the operator of acme is {first}, but this service has the key of {second}."
        async with running(COMMAND_LINE, *serve, until=expected.encode()) as process:
            process.terminate()
            await process.wait()

        # And what the line says to do puts the next key in place; all old ones are kept
        await _done("roles", "set", "--operator", following, *folder)
        assert "new key" in await _done("roles", "rotate", "operator", *folder)
        assert f"operator: {following}" in await _done("roles", "show", *folder)
        assert _keys(tmp_path, "operator") == {
            "operator.json": following,
            "operator.old.json": first,
            "operator.old-2.json": second,
        }


@pytest.mark.proves("GET /readyz")
async def test_ready_service_names_the_role_that_it_lost(own_world: ServiceWorld) -> None:
    world, authority = own_world, own_world.service.signers.require_authority()
    assert "lost_roles" not in (await world.client.get("/readyz")).json()
    replaced = await world.org_update(authority.pubkey(), operator=authority.pubkey())
    assert (await world.land([replaced], authority)).err is None
    await world.restart()

    ready = await world.client.get("/readyz")

    assert (ready.status_code, ready.json()["lost_roles"]) == (
        200,
        [
            {
                "organization_address": world.org,
                "role": "operator",
                "holder": str(authority.pubkey()),
                "key": str(world.service.signers.operator_address),
            }
        ],
    )
