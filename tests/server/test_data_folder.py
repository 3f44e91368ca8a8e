"""A data folder belongs to one chain, program and mint: what commands say that would use another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.identity import SameChain, WrongChainError
from app.commands.main import main
from app.core.paths import program_file
from app.localnet import Localnet
from app.localnet.genesis import USDC_MINT
from app.localnet.tokens import TOKEN_PROGRAM
from idl.codec import load
from tests.support.http import PATIENCE
from tests.support.processes import free_ports, running
from tests.support.service_world import GENESIS_HASHES, ServiceWorld, error_of
from tests.support.vm_tokens import mint_data
from tests.support.warm import COMMAND_LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PROGRAM = load().program_id


@asynccontextmanager
async def _node(
    genesis_hash: str | None = None, *, program: Pubkey | None = _PROGRAM
) -> AsyncIterator[tuple[str, Localnet]]:
    """A chain on a port: its address, and the chain."""
    programs = {} if program is None else {program: program_file()}
    async with Localnet.open(None, programs) as localnet, localnet.serving("127.0.0.1", 0) as (port, _):
        if genesis_hash is not None:
            localnet.chain.timeline.genesis_hash = Hash.from_string(genesis_hash)
        yield f"http://127.0.0.1:{port}", localnet


async def _run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """Run the command line beside this loop, which serves its chain."""
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, env=env)


async def _refusal(*arguments: str, env: dict[str, str] | None = None) -> str:
    """The one line with which a command refuses."""
    refused = await _run(*arguments, env=env)
    assert refused.exit_code == 1, refused.output
    assert refused.exception is None or isinstance(refused.exception, SystemExit), refused.exception
    [line] = refused.output.splitlines()
    assert line.startswith("Error: ")
    assert "internal" not in line.lower()
    return line


def _files(folder: Path) -> list[str]:
    # SQLite makes and removes its two files next to a database as it likes; locks stay.
    return sorted(path.name for path in folder.rglob("*") if not path.name.endswith(("-wal", "-shm", ".lock")))


async def test_commands_refuse_another_chain_and_say_what_to_do(tmp_path: Path) -> None:
    folder = ("--data-dir", str(tmp_path))
    async with _node() as (ours, chain), _node(GENESIS_HASHES["devnet"]) as (theirs, _):
        made = await _run("orgs", "create", "acme", *folder, "--rpc-url", ours)
        assert made.exit_code == 0, made.output
        before = _files(tmp_path)

        for command in (["orgs", "create", "other"], ["keeper"], ["serve"]):
            said = await _refusal(*command, *folder, "--rpc-url", theirs)
            for part in (str(chain.chain.timeline.genesis_hash), "devnet", GENESIS_HASHES["devnet"], str(tmp_path)):
                assert part in said
            assert "--rpc-url" in said
            assert "--data-dir" in said
        for command in (["serve"], ["localnet"]):
            said = await _refusal(*command, *folder)
            assert "embedded chain cannot run in it" in said

        assert _files(tmp_path) == before


async def test_commands_refuse_another_program_and_another_mint(tmp_path: Path) -> None:
    other = Keypair().pubkey()
    async with _node() as (url, _):
        options = ("--data-dir", str(tmp_path), "--rpc-url", url)
        assert (await _run("orgs", "create", "acme", *options)).exit_code == 0

        mint = await _refusal("keeper", *options, "--usdc-mint", str(other))
        program = await _refusal("keeper", *options, env={"AGENT_VAULT_PROGRAM_ID": str(other)})

    assert f"belongs to the USDC mint {USDC_MINT}, not to {other}" in mint
    assert f"belongs to the program {_PROGRAM}, not to {other}" in program


async def test_commands_use_the_folders_own_chain_and_mint(tmp_path: Path) -> None:
    folder, mint = ("--data-dir", str(tmp_path)), Keypair().pubkey()
    async with _node() as (url, localnet):
        localnet.chain.bank.put(mint, Account(10**9, mint_data(), TOKEN_PROGRAM))
        first = await _run("orgs", "create", "first", *folder, "--rpc-url", url, "--usdc-mint", str(mint))
        assert first.exit_code == 0, first.output

        second = await _run("orgs", "create", "second", *folder)

        assert second.exit_code == 0, second.output
        assert f"(mint {mint})" in second.output
        async with running(COMMAND_LINE, "keeper", *folder, until=b"Keeper at work on the node at 127.0.0.1:"):
            pass


async def test_missing_part_is_said_in_one_line(tmp_path: Path) -> None:
    def create(name: str, url: str, *options: str) -> tuple[str, ...]:
        return ("orgs", "create", "acme", "--data-dir", str(tmp_path / name), "--rpc-url", url, *options)

    async with _node(program=None) as (url, _):
        assert f"has no program {_PROGRAM}" in await _refusal(*create("program", url))
    async with _node() as (url, localnet):
        wrong = Keypair().pubkey()
        assert "--usdc-mint" in await _refusal(*create("mint", url, "--usdc-mint", str(wrong)))
        localnet.chain.bank.put(wrong, Account(10**9, b"\1" * 82, TOKEN_PROGRAM))
        assert "--usdc-mint" in await _refusal(*create("mint", url, "--usdc-mint", str(wrong)))
        assert "--usdc-mint" in await _refusal(*create("mint", url, "--usdc-mint", "none"))
    async with _node(GENESIS_HASHES["mainnet-beta"]) as (url, _):
        said = await _refusal(*create("payer", url))
        assert "SOL" in said
        assert "the fee payer" in said
    port, _ = free_ports()
    said = await _refusal(*create("node", f"http://user:secret@127.0.0.1:{port}"))
    assert f"127.0.0.1:{port}" in said
    assert "--rpc-url" in said
    assert "secret" not in said
    assert "rpc_url" in await _refusal(*create("url", "127.0.0.1:8899"))


async def test_request_without_sol_for_fees_or_rent_is_fee_payer_insufficient(own_world: ServiceWorld) -> None:
    payer = own_world.service.signers.fee_payer_address
    for lamports in (0, 6_000, 900_000):
        account = Account(lamports, b"", Pubkey.default()) if lamports else None
        own_world.localnet.chain.bank.put(payer, account)
        refused = await own_world.call(
            "POST", "/v1/wallets", {"agentId": "a", "label": "A", "policyId": "pol_moderate"}
        )
        assert "SOL" in error_of(refused, 503, "fee_payer_insufficient")["message"]


@pytest.mark.proves("Organization(cluster, genesis_hash)")
@pytest.mark.parametrize(("cluster", "prefix"), [("mainnet-beta", "avk_live_"), ("devnet", "avk_test_")])
async def test_genesis_hash_names_the_cluster(tmp_path: Path, cluster: str, prefix: str) -> None:
    async with ServiceWorld(tmp_path, genesis_hash=GENESIS_HASHES[cluster]) as world:
        made = await world.ok("POST", "/v1/keys", {"role": "viewer"})
        assert made["key"].startswith(prefix)
        wallet = await world.wallet()
        [row] = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
        query = "" if cluster == "mainnet-beta" else f"?cluster={cluster}"
        assert row["explorer_url_1"] == f"https://explorer.solana.com/tx/{row['tx_signature']}{query}"


async def test_service_started_without_its_node_lets_no_other_in(own_world: ServiceWorld) -> None:
    wallet, to = await own_world.wallet(), await own_world.payee()
    await own_world.stop()

    # When the node is down at the start, and another chain's node answers in its place
    await own_world.start(lose_requests=lambda _method: True)
    own_world.line.mend()
    real = own_world.localnet.chain.timeline.genesis_hash
    own_world.localnet.chain.timeline.genesis_hash = Hash.new_unique()
    own_world.line.methods.clear()
    error_of(await own_world.pay(wallet, to, "1"), 503, "chain_unavailable")

    # Then it has been asked for nothing but its name, until the chain's own node is back
    assert set(own_world.line.methods) == {"getGenesisHash"}
    own_world.localnet.chain.timeline.genesis_hash = real
    assert (await own_world.pay(wallet, to, "1")).json()["status"] == "confirmed"


async def test_chain_exchanged_behind_a_running_service_is_let_in_no_longer(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SameChain, "every", 0.0)
    wallet, to = await own_world.wallet(), await own_world.payee()

    # When another chain's node answers from one request to the next
    real = own_world.localnet.chain.timeline.genesis_hash
    own_world.localnet.chain.timeline.genesis_hash = Hash.new_unique()
    async with asyncio.timeout(PATIENCE):
        with suppress(WrongChainError):
            while True:
                await own_world.service.chain.account(Pubkey.from_string(to))
    own_world.line.methods.clear()
    error_of(await own_world.pay(wallet, to, "1"), 503, "chain_unavailable")

    # Then it is asked for nothing but its name, until the chain's own node is back
    assert set(own_world.line.methods) == {"getGenesisHash"}
    own_world.localnet.chain.timeline.genesis_hash = real
    assert (await own_world.pay(wallet, to, "1")).json()["status"] == "confirmed"


async def test_change_of_keys_in_a_mistyped_folder_creates_none(tmp_path: Path) -> None:
    mistyped, somebody = tmp_path / "dta", str(Keypair().pubkey())
    for command in (
        *(["roles", "rotate", role] for role in ("operator", "arbiter", "fee-payer")),
        ["roles", "show"],
        ["roles", "set", "--operator", somebody],
        ["roles", "propose-authority", somebody],
        ["orgs", "withdraw", "1", somebody],
    ):
        said = await _refusal(*command, "--data-dir", str(mistyped))
        assert said == f"Error: there is no service data in {mistyped}; name its folder with --data-dir"
        assert not mistyped.exists()


async def test_one_of_several_nodes_is_enough_but_not_of_several_chains(tmp_path: Path) -> None:
    made = ("orgs", "create", "acme", "--data-dir")
    async with _node() as (url, localnet), _node(GENESIS_HASHES["devnet"]) as (other, _):
        refused = await _refusal(*made, str(tmp_path / "none"), "--rpc-url", url, "--rpc-url", other)
        assert "the nodes belong to different chains" in refused
        nodes = ("--rpc-url", "http://127.0.0.1:1", "--rpc-url", url)
        started = await _run(*made, str(tmp_path / "acme"), *nodes)
        assert started.exit_code == 0, started.output

        # A node of another chain among them is left out
        listed = await _run("roles", "show", "--data-dir", str(tmp_path / "acme"), "--rpc-url", other, "--rpc-url", url)
        assert listed.exit_code == 0, listed.output
        assert localnet.chain.timeline.slot() > 0
