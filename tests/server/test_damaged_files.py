"""Files of a data folder that were copied under load, torn or truncated: they are rejected by name, or are correct."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.core.paths import ConfigurationError, Paths
from app.server.databases import open_file
from tests.support.service_world import Json, ServiceWorld

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.sqlite("the files are in the data folder"),
]

_SEED = 20261126
_CASES = 50
_COPIES = 10


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="loaded")
async def _loaded(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ServiceWorld, Json, str, list[Path]]]:
    """A stopped service, its wallet and payee, and copies of its folder that were made while it paid."""
    folder, copies = tmp_path_factory.mktemp("service"), tmp_path_factory.mktemp("copies")
    async with ServiceWorld(folder) as world:
        wallet, to = await world.wallet(), await world.payee()
        made: list[Path] = []

        async def pay() -> None:
            while len(made) < _COPIES:
                assert (await world.pay(wallet, to, "0.01", body={"memo": "x" * 200})).status_code == 200

        async def copy() -> None:
            for number in range(_COPIES):
                await asyncio.to_thread(shutil.copytree, folder, copies / str(number))
                made.append(copies / str(number))

        await asyncio.gather(copy(), pay(), pay(), pay())
        await world.stop()
        yield world, wallet, to, made
        await world.start()


def _damage(chosen: random.Random, folder: Path, earlier: list[Path]) -> str:
    """Damage a file of the folder in one way, which is returned."""
    paths = Paths(folder)
    path = chosen.choice([paths.database, paths.database, paths.events])
    size = path.stat().st_size
    how = chosen.choice(["truncated", "torn", "zeroed", "replaced", "moved"])
    with path.open("r+b") as file:
        match how:
            case "truncated":
                file.truncate(chosen.randrange(size))
            case "torn":
                # What a copy has if it reads the file while it is written: pages of an earlier moment
                old = Paths(chosen.choice(earlier)).database if path == paths.database else None
                pages = (old or path).read_bytes()
                for _ in range(chosen.randrange(1, 20)):
                    at = chosen.randrange(size // 4096) * 4096
                    file.seek(at)
                    file.write(pages[at : at + 4096] if old else bytes(4096))
            case "zeroed":
                file.seek(chosen.randrange(size // 4096) * 4096)
                file.write(bytes(4096))
    if how == "replaced":
        # As `cp` does it, into the same file; the write-ahead log may be left over
        shutil.copyfile(Paths(chosen.choice(earlier)).database, paths.database)
    elif how == "moved":
        paths.database.unlink()
        shutil.copyfile(Paths(chosen.choice(earlier)).database, paths.database)
    return f"{path.name} {how}"


@pytest.mark.parametrize("number", range(_CASES))
async def test_damaged_folder_is_rejected_by_name_or_correct(
    loaded: tuple[ServiceWorld, Json, str, list[Path]], tmp_path: Path, number: int
) -> None:
    original, wallet, to, copies = loaded
    chosen = random.Random(f"{_SEED} {number}")
    folder = tmp_path / "data"
    # Given a copy under load, or the folder of the stopped service with one damaged file
    copied = chosen.random() < 0.3
    shutil.copytree(chosen.choice(copies) if copied else original.settings.data_dir, folder)
    what = "copied" if copied else _damage(chosen, folder, copies)

    # When a service starts there
    world = ServiceWorld(folder)
    world.localnet, world.clock, world.org, world.keys = original.localnet, original.clock, original.org, original.keys
    rejection = ""
    try:
        await world.start()
    except ConfigurationError as error:
        rejection = str(error)
    if rejection:
        assert str(folder) in rejection, what
        return

    # Then all data is there, as on the chain
    try:
        assert not copied, what
        await world.catch_up()
        left = await world.balance(wallet["chain_address"])
        found = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
        assert found["usdc_balance"] == f"{left / 1_000_000:.2f}", what
        paid = world.service.db.read_now(
            lambda conn: conn.exec_driver_sql("SELECT count(*) FROM attempts WHERE type = 'payment'").scalar_one()
        )
        assert paid == await world.balance(to) // 10_000, what
    finally:
        await world.stop()


async def test_every_copy_under_load_is_rejected(
    loaded: tuple[ServiceWorld, Json, str, list[Path]], tmp_path: Path
) -> None:
    _, _, _, copies = loaded
    for copy in copies:
        for kept in (("agent-vault.db",), ("agent-vault.db", "agent-vault.db-wal"), ("agent-vault.db", "in-use")):
            folder = tmp_path / f"{copy.name} {len(kept)} {kept[-1]}"
            folder.mkdir()
            for name in kept:
                if (copy / name).exists():
                    shutil.copy(copy / name, folder)
            with pytest.raises(ConfigurationError, match=f"{folder}/agent-vault.db is "):
                open_file(Paths(folder))
