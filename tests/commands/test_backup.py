"""`agent-vault backup` and `restore`: what a restored copy knows, refuses and goes on with."""

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from solders.keypair import Keypair

from app.access.keyring import KeyRing
from app.commands.main import main
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.organisations import service as organisations
from app.server.bootstrap import open_localnet, running
from app.store.audit import log_head
from app.store.values import put_value
from app.submission.database_guard import DatabaseGuard
from app.submission.recovery import Recovery
from tests.support.http import PATIENCE
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PASSPHRASE = "a long enough passphrase"
#: Seconds after which a transaction that never landed has expired.
_EXPIRY = 90.0


async def _run(*arguments: str | Path, **options: Any) -> Result:
    """Run the command line beside this loop, as another process would."""
    return await asyncio.to_thread(CliRunner().invoke, main, [str(one) for one in arguments], **options)


async def _ok(*arguments: str | Path, **options: Any) -> str:
    done = await _run(*arguments, **options)
    assert done.exit_code == 0, done.output
    return done.output


async def _refusal(*arguments: str | Path, **options: Any) -> str:
    """Return the one line with which a command refuses."""
    refused = await _run(*arguments, **options)
    assert refused.exit_code in {1, 2}, refused.output
    assert refused.exception is None or isinstance(refused.exception, SystemExit), refused.exception
    line = refused.output.splitlines()[-1]
    assert line.startswith("Error: ")
    if refused.exit_code == 1:
        assert refused.output.splitlines() == [line]
    return line


def _named(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.rglob("*"))


def _secret(folder: Path, text: str = _PASSPHRASE) -> Path:
    path = folder / "passphrase"
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return path


async def _back_up(world: ServiceWorld, folder: Path) -> Path:
    """Back up a running service, without its keys."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a moment
    file = folder / "backup.zip"
    await _ok("backup", file, "--data-dir", world.settings.data_dir)
    return file


async def _restore(world: ServiceWorld, file: Path, *options: str, chain: bool = True) -> str:
    """Stop the service, restore the backup beside it, put the keys back, and start; returns what was printed."""
    await world.stop()
    old, new = world.settings.data_dir, file.parent / "restored"
    said = await _ok("restore", file, "--data-dir", new, *_verified(world), *options)
    shutil.copytree(old / "keys", new / "keys")
    lost: Callable[[str], bool] | None = None if chain else (lambda method: method == "getSignaturesForAddress")
    await world.start(data_dir=new, lose_requests=lost)
    if chain:
        await _caught_up(world)
    return said


def _verified(world: ServiceWorld) -> tuple[str, Path]:
    """Return the option that verifies an archive of this service without keys."""
    return "--secret-file", world.settings.paths().secret


async def _caught_up(world: ServiceWorld) -> None:
    database_guard = world.service.part(DatabaseGuard)
    database_guard.wake()
    async with asyncio.timeout(PATIENCE):
        while database_guard.pending:  # noqa: ASYNC110 - it has no signal
            await asyncio.sleep(0.01)


async def _pay(world: ServiceWorld, wallet: Json, to: str, key: str, **fields: Any) -> Any:
    return await world.pay(wallet, to, "1", body={"idempotencyKey": key, **fields})


async def test_backup_is_shown_as_the_last_one(world: ServiceWorld, tmp_path: Path) -> None:
    file = world.settings.paths().backed_up
    os.utime(file, (1_700_000_000, 1_700_000_000))
    await _back_up(world, tmp_path / "archive")
    assert time.time() - file.stat().st_mtime < 60


@pytest.mark.proves(
    "error restore_unacknowledged",
    "error restore_catching_up",
    "FundWallet(afterRestore)",
    "FundWallets(afterRestore)",
    "WithdrawFromWallet(afterRestore)",
    "CreatePayment(afterRestore)",
    "CreateEscrow(afterRestore)",
)
async def test_restored_copy_goes_on_and_repeats_no_payment(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    first = (await _pay(world, wallet, to, "before")).json()
    revoked = await world.ok("POST", "/v1/keys", {"role": "viewer", "name": "old"})
    file = await _back_up(world, tmp_path / "out")
    assert (file.stat().st_mode & 0o777) == 0o600
    second = (await _pay(world, wallet, to, "after")).json()
    later = await world.wallet()
    newer = await world.ok("POST", "/v1/keys", {"role": "viewer", "name": "new"})
    await world.ok("DELETE", f"/v1/keys/{revoked['key_id']}", {})

    said = await _restore(world, file, chain=False)
    assert "Keys revoked after it are valid again" in said
    assert "has no keys" in said
    error_of(await world.call("GET", "/v1/organization", key=newer["key"]), 401, "authentication_failed")
    await world.ok("GET", "/v1/organization", key=revoked["key"])

    # Until the chain was read, nobody knows what was paid.
    waiting = await _pay(world, wallet, to, "after")
    error_of(waiting, 503, "restore_catching_up")
    assert waiting.headers["retry-after"] == "1"
    error_of(await _pay(world, wallet, to, "after", afterRestore=True), 503, "restore_catching_up")
    # A wallet that was made after the backup exists, so it is not `wallet_not_found`.
    error_of(await _pay(world, later, to, "later"), 503, "restore_catching_up")
    repeated = await _pay(world, wallet, to, "before")
    assert (repeated.json(), repeated.headers["idempotent-replayed"]) == (first, "true")
    world.line.mend()
    await _caught_up(world)

    unsure = error_of(await _pay(world, wallet, to, "after"), 409, "restore_unacknowledged")
    assert "restored" in unsure["message"]
    assert await world.balance(to) == 2_000_000
    shown = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    assert {first["tx_id"], second["tx_id"]} <= {one["tx_id"] for one in shown}

    made = (await _pay(world, wallet, to, "more", afterRestore=True)).json()
    assert made["status"] == "confirmed"
    again = await _pay(world, wallet, to, "more")
    assert (again.status_code, again.json()["tx_id"]) == (200, made["tx_id"])
    assert await world.balance(to) == 3_000_000
    # A restart changes nothing about that.
    await world.restart()
    error_of(await _pay(world, wallet, to, "after"), 409, "restore_unacknowledged")


@pytest.mark.proves(
    "FundWallet(afterRestore)",
    "FundWallets(afterRestore)",
    "WithdrawFromWallet(afterRestore)",
    "CreatePayment(afterRestore)",
    "FetchPaidResource(afterRestore)",
    "PayOffer(afterRestore)",
    "SimulatePayment(afterRestore)",
    "GrantAllowance(afterRestore)",
    "CreateEscrow(afterRestore)",
    "PayFromWallet(afterRestore)",
)
async def test_every_movement_of_money_asks_after_a_restore(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    policy = (await world.policy(allowAllowances=True))["policy_id"]
    wallet, other, to = await world.wallet(policy), await world.wallet(), await world.payee()
    await _restore(world, await _back_up(world, tmp_path / "out"))
    path, amount = f"/v1/wallets/{wallet['wallet_id']}", {"amount": "1", "currency": "USDC"}
    escrow = {
        "fromWallet": wallet["wallet_id"],
        "toWallet": other["wallet_id"],
        "taskDescription": "Summarise the report",
        **amount,
    }
    requests: dict[str, Json] = {
        "/v1/payments": {"walletId": wallet["wallet_id"], "to": to, **amount},
        f"{path}/pay": {"to": to, **amount},
        f"{path}/fund": amount,
        f"{path}/withdraw": amount,
        "/v1/wallets/fund-batch": {"allocations": [{"walletId": wallet["wallet_id"], "amount": "1"}]},
        "/v1/payments/a2a": escrow,
        f"{path}/allowances": {"destination": to, "delegate": str(Keypair().pubkey()), "amount": "1"},
    }
    paid = {"walletId": wallet["wallet_id"], "url": "https://paid.example/", "maxAmount": "1"}
    paid_requests: dict[str, Json] = {
        "/v1/x402/fetch": paid,
        "/v1/x402/payments": {**paid, "paymentRequired": {"x402Version": 1, "accepts": []}},
    }
    for place, body in (requests | paid_requests).items():
        for headers in ({}, {"Idempotency-Key": place}):
            error_of(await world.call("POST", place, body, headers=headers), 409, "restore_unacknowledged")
        error_of(await world.call("POST", place, {**body, "afterRestore": "soon"}), 400, "invalid_request")
    await world.ok("POST", "/v1/payments/simulate", requests["/v1/payments"])
    await world.policy(maxPerTx="5")
    await world.ok("PATCH", path, {"status": "frozen"})
    await world.ok("PATCH", path, {"status": "active"})
    for place, body in requests.items():
        await world.ok("POST", place, {**body, "afterRestore": True})
    for place, body in paid_requests.items():
        refused = await world.call("POST", place, {**body, "afterRestore": True})
        assert refused.json()["error"]["code"] != "restore_unacknowledged"
    await world.ok("POST", "/v1/payments/simulate", {**requests["/v1/payments"], "afterRestore": False})


async def test_expired_attempt_in_a_backup_is_not_replaced_unasked(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await _pay(world, wallet, to, "late"), 503, "chain_unavailable")
    file = await _back_up(world, tmp_path / "out")
    world.line.mend()
    world.clock.ahead += _EXPIRY
    await world.service.part(Recovery).recover()
    # After the backup, the expired attempt is replaced by one that pays.
    assert (await _pay(world, wallet, to, "late")).json()["status"] == "confirmed"

    await _restore(world, file)
    error_of(await _pay(world, wallet, to, "late"), 409, "restore_unacknowledged")
    assert await world.balance(to) == 1_000_000


@pytest.mark.parametrize("how", ["at the restore", "later", "after a day"])
async def test_checked_gap_and_a_day_later_need_no_word(own_world: ServiceWorld, tmp_path: Path, how: str) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    file = await _back_up(world, tmp_path / "out")
    await _restore(world, file, *(["--gap-checked"] if how == "at the restore" else []))
    folder = world.settings.data_dir
    if how != "at the restore":
        error_of(await _pay(world, wallet, to, "one"), 409, "restore_unacknowledged")
    if how == "later":
        await _ok("restore", "--gap-checked", "--data-dir", folder)
        await world.service.part(DatabaseGuard).tick()
    if how == "after a day":
        day_ago = str(now_ms() - 24 * 3600 * 1000)
        await world.service.db.write(lambda conn: put_value(conn, "restored_at", day_ago))
        await world.restart()
    assert (await _pay(world, wallet, to, "one")).json()["status"] == "confirmed"


async def test_backup_under_load_is_one_moment_of_the_service(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    paying, paid = True, 0

    async def pays() -> None:
        nonlocal paid
        while paying:
            assert (await _pay(world, wallet, to, f"key {paid}")).status_code == 200
            paid += 1

    task = asyncio.create_task(pays())
    while paid < 3:  # noqa: ASYNC110 - the payments have no signal
        await asyncio.sleep(0.01)
    file = await _back_up(world, tmp_path / "out")
    paying = False
    await task

    await _restore(world, file)
    with closing(sqlite3.connect(world.settings.data_dir / "agent-vault.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    known = [f"key {number}" for number in range(paid)]
    for key in known[:3]:
        assert (await _pay(world, wallet, to, key)).headers["idempotent-replayed"] == "true"
    for key in known[3:]:
        answer = await _pay(world, wallet, to, key)
        assert answer.status_code in {200, 409}
    assert await world.balance(to) == paid * 1_000_000
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert round(float(shown["usdc_balance"]) * 10**6) == await world.balance(wallet["chain_address"])


async def test_sealed_keys_bring_back_the_embedded_chain(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", alerts=False)
    async with open_localnet(settings) as chain, running(settings, chain) as service:
        await chain.airdrop(service.signers.fee_payer_address, 10**9)
        made = await organisations.create(service, "acme")
        key = service.part(KeyRing).create(org=made.org, role="admin", wallet_id=None, name="", live=False)
        genesis = service.identity.genesis_hash
        passphrase = _secret(tmp_path)
        sealed = ("--with-keys", "--passphrase-file", passphrase)
        said = await _ok("backup", tmp_path / "b.zip", "--data-dir", settings.data_dir, *sealed)
        assert "sealed" in said
    secret = (settings.data_dir / "keys" / "service-secret").read_bytes()
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert not [name for name in archive.namelist() if name.startswith("keys/")]
        assert all(secret.strip() not in archive.read(name) for name in archive.namelist())

    asked = await _ok("restore", tmp_path / "b.zip", "--data-dir", tmp_path / "new", input=f"{_PASSPHRASE}\n")
    assert _PASSPHRASE not in asked
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "new").rglob("*")} == {0}
    shutil.rmtree(settings.data_dir)
    restored = settings.model_copy(update={"data_dir": tmp_path / "new"})
    async with open_localnet(restored) as chain, running(restored, chain) as service:
        assert service.identity.genesis_hash == genesis
        assert (await service.part(KeyRing).recognise(key, None)) is not None
        await chain.airdrop(service.signers.fee_payer_address, 10**9)
        assert (await organisations.create(service, "second")).org != made.org


@pytest.mark.proves("action backup.gap_checked", "action backup.restore")
async def test_restore_and_its_checked_gap_are_on_record(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    before = world.service.db.read_now(lambda conn: log_head(conn, world.org))
    file = await _back_up(world, tmp_path / "out")
    await world.ok("POST", "/v1/keys", {"role": "viewer"})
    later = world.service.db.read_now(lambda conn: log_head(conn, world.org))
    await _restore(world, file)
    folder = world.settings.data_dir
    await _ok("restore", "--gap-checked", "--data-dir", folder)

    checked, restored, *_ = (await world.ok("GET", "/v1/audit-log"))["data"]

    assert (checked["action"], checked["details"]) == ("backup.gap_checked", {})
    assert (restored["action"], restored["details"]["gap_checked"]) == ("backup.restore", False)
    assert restored["details"]["verified_by"] == "mac"
    with zipfile.ZipFile(file) as archive:
        assert restored["details"]["backup_of"] == json.loads(archive.read("manifest.json"))["created_at"]
    assert checked["actor"] == restored["actor"] == {"type": "system", "id": "command_line"}
    # A head from before the backup is still in the log, one from after it is not.
    assert before is not None
    assert later is not None
    assert "Verified" in await _ok("audit", "verify", "--head", before.hash, "--data-dir", folder)
    assert "none has the hash" in await _refusal("audit", "verify", "--head", later.hash, "--data-dir", folder)


async def test_restored_folder_without_keys_names_the_remedy(own_world: ServiceWorld, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    file = await _back_up(own_world, tmp_path / "out")
    await _ok("restore", file, "--data-dir", folder, *_verified(own_world))
    for command in (("audit", "verify", "--head", "00"), ("audit", "list"), ("keys", "list")):
        said = await _refusal(*command, "--data-dir", folder)
        assert "service-secret is missing" in said
        assert f"put back the folder {folder / 'keys'}" in said


async def test_embedded_chain_without_its_faucet_names_the_remedy(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", alerts=False)
    async with open_localnet(settings) as chain, running(settings, chain):
        pass
    await _ok("backup", tmp_path / "b.zip", "--data-dir", settings.data_dir)
    secret = ("--secret-file", settings.paths().secret)
    await _ok("restore", tmp_path / "b.zip", "--data-dir", tmp_path / "new", *secret)
    for command in ("serve", "localnet"):
        said = await _refusal(command, "--data-dir", tmp_path / "new")
        assert "faucet.json is missing: restore" in said


async def test_folder_without_its_own_secret_is_refused(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    file = await _back_up(world, tmp_path / "out")
    await _ok("restore", file, "--data-dir", tmp_path / "new", *_verified(world))
    missing = await _refusal("keeper", "--data-dir", tmp_path / "new", "--rpc-url", "http://127.0.0.1:1")
    assert "service-secret is missing" in missing
    assert "put back the folder" in missing
    shutil.copytree(world.settings.data_dir / "keys", tmp_path / "new" / "keys")
    (tmp_path / "new" / "keys" / "service-secret").write_text("00" * 32)
    other = await _refusal("keeper", "--data-dir", tmp_path / "new", "--rpc-url", "http://127.0.0.1:1")
    assert "service-secret is not the secret of" in other


def _rewrite(source: Path, target: Path, change: Callable[[dict[str, bytes], Json], None]) -> Path:
    """Write an altered archive whose zip file itself is sound."""
    with zipfile.ZipFile(source) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts.pop("manifest.json"))
    change(parts, manifest)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        archive.writestr("manifest.json", json.dumps(manifest))
    return target


def _altered(parts: dict[str, bytes], _manifest: Json) -> None:
    parts["chain.db"] = parts["chain.db"][:-1] + b"x"


def _longer(parts: dict[str, bytes], _manifest: Json) -> None:
    parts["chain.db"] += bytes(5 * 1024 * 1024)


def _extra(parts: dict[str, bytes], _manifest: Json) -> None:
    parts["keys/operator.json"] = b"[]"


def _outside(parts: dict[str, bytes], manifest: Json) -> None:
    parts["exports/../../evil.csv"] = parts["chain.db"]
    manifest["files"]["exports/../../evil.csv"] = manifest["files"]["chain.db"]


def _absolute(parts: dict[str, bytes], manifest: Json) -> None:
    parts["/tmp/evil"] = parts["chain.db"]
    manifest["files"]["/tmp/evil"] = manifest["files"]["chain.db"]


def _missing(parts: dict[str, bytes], _manifest: Json) -> None:
    del parts["agent-vault.db"]


def _newer_format(_parts: dict[str, bytes], manifest: Json) -> None:
    manifest["version"] = 2


def _foreign(_parts: dict[str, bytes], manifest: Json) -> None:
    manifest["format"] = "other"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_altered, "chain.db differs from its manifest"),
        (_longer, "chain.db differs from its manifest"),
        (_extra, "its files are not the files in its manifest"),
        (_outside, "files that do not belong in a backup"),
        (_absolute, "files that do not belong in a backup"),
        (_missing, "its files are not the files in its manifest"),
        (_newer_format, "is not a backup made by agent-vault"),
        (_foreign, "is not a backup made by agent-vault"),
    ],
)
async def test_broken_or_foreign_archive_is_refused(
    world: ServiceWorld, tmp_path: Path, change: Callable[[dict[str, bytes], Json], None], says: str
) -> None:
    file = _rewrite(await _back_up(world, tmp_path / "out"), tmp_path / "changed.zip", change)
    assert says in await _refusal("restore", file, "--data-dir", tmp_path / "new" / "data", *_verified(world))
    assert not (tmp_path / "new" / "data").exists()
    assert "evil" not in _named(tmp_path)


def _promoted(parts: dict[str, bytes], manifest: Json) -> None:
    """Make every key in the archive an admin's, and renew the hash in the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db"
        path.write_bytes(parts["agent-vault.db"])
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE api_keys SET role = 'admin', wallet_id = NULL, name = 'altered'")
            db.commit()
        parts["agent-vault.db"] = path.read_bytes()
    found = {"size": len(parts["agent-vault.db"]), "sha256": hashlib.sha256(parts["agent-vault.db"]).hexdigest()}
    manifest["files"]["agent-vault.db"] = found


async def test_role_set_to_admin_inside_the_archive_is_refused(world: ServiceWorld, tmp_path: Path) -> None:
    await world.ok("POST", "/v1/keys", {"role": "viewer"})
    file = _rewrite(await _back_up(world, tmp_path / "out"), tmp_path / "changed.zip", _promoted)
    said = await _refusal("restore", file, "--data-dir", tmp_path / "new", *_verified(world))
    assert "was altered, or was made with another secret" in said

    def signed_elsewhere(_parts: dict[str, bytes], manifest: Json) -> None:
        manifest["mac"] = "ä" * 64

    def unsigned(_parts: dict[str, bytes], manifest: Json) -> None:
        del manifest["mac"]

    for change in (signed_elsewhere, unsigned):
        again = _rewrite(file, tmp_path / f"{change.__name__}.zip", change)
        assert "was altered" in await _refusal("restore", again, "--data-dir", tmp_path / "new", *_verified(world))
    other = _secret(tmp_path, "00" * 32)
    genuine = tmp_path / "out" / "backup.zip"
    refused = await _refusal("restore", genuine, "--data-dir", tmp_path / "new", "--secret-file", other)
    assert "made with another secret" in refused
    assert "cannot be verified: name your copy" in await _refusal("restore", file, "--data-dir", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    await _ok("restore", file, "--data-dir", tmp_path / "new", "--accept-unverified")
    with closing(sqlite3.connect(tmp_path / "new" / "agent-vault.db")) as db:
        query = "SELECT details FROM audit_entries WHERE action = 'backup.restore' ORDER BY rowid DESC"
        assert json.loads(db.execute(query).fetchone()[0])["verified_by"] is None


async def test_fingerprint_accepts_exactly_one_archive(own_world: ServiceWorld, tmp_path: Path) -> None:
    world, passphrase = own_world, _secret(tmp_path)
    folder, files = world.settings.data_dir, [tmp_path / "plain.zip", tmp_path / "sealed.zip"]
    sealed = ("--passphrase-file", passphrase)
    said = await _ok("backup", files[0], "--data-dir", folder)
    said_sealed = await _ok("backup", files[1], "--data-dir", folder, "--with-keys", *sealed)
    prints = [text.partition("Fingerprint: ")[2].splitlines()[0] for text in (said, said_sealed)]
    for file, printed, other in zip(files, prints, reversed(prints), strict=True):
        to = ("--data-dir", tmp_path / f"{file.stem}", *(sealed if file is files[1] else ()))
        altered = _rewrite(file, tmp_path / "altered.zip", _promoted)
        for archive, given in ((altered, printed), (file, other), (file, "x")):
            refused = await _refusal("restore", archive, *to, "--fingerprint", given, "--accept-unverified")
            assert "has another fingerprint" in refused
        await _ok("restore", file, *to, "--fingerprint", printed.upper())

    def stripped(parts: dict[str, bytes], manifest: Json) -> None:
        del parts["keys.sealed"], manifest["sealed"]

    bare = _rewrite(files[1], tmp_path / "bare.zip", stripped)
    assert "was altered" in await _refusal("restore", bare, "--data-dir", tmp_path / "no", *_verified(world))


async def test_file_that_is_no_archive_is_refused(world: ServiceWorld, tmp_path: Path) -> None:
    cut = tmp_path / "cut.zip"
    cut.write_bytes((await _back_up(world, tmp_path / "out")).read_bytes()[:-2000])
    text = tmp_path / "text.zip"
    text.write_text("not a zip file")
    for file in (cut, text):
        assert "is not a backup made by agent-vault" in await _refusal("restore", file, "--data-dir", tmp_path / "new")
    assert "there is no file" in await _refusal("restore", tmp_path / "none", "--data-dir", tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_folder_with_anything_in_it_is_refused(world: ServiceWorld, tmp_path: Path) -> None:
    file, folder = await _back_up(world, tmp_path / "out"), tmp_path / "new"
    folder.mkdir()
    await _ok("restore", file, "--data-dir", folder, *_verified(world))
    before = sorted(path.name for path in folder.iterdir())
    assert "is not empty" in await _refusal("restore", file, "--data-dir", folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert "is not a folder" in await _refusal("restore", file, env={"AGENT_VAULT_DATA_DIR": str(file)})


async def test_unknown_schema_is_refused_and_the_folder_stays_empty(world: ServiceWorld, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await _ok("restore", await _back_up(world, tmp_path / "out"), "--data-dir", folder, *_verified(world))
    shutil.copytree(world.settings.data_dir / "keys", folder / "keys")
    with closing(sqlite3.connect(folder / "agent-vault.db")) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()
    file = tmp_path / "newer.zip"
    await _ok("backup", file, "--data-dir", folder)
    (tmp_path / "new").mkdir()
    line = await _refusal("restore", file, "--data-dir", tmp_path / "new", *_verified(world))
    assert "its schema is 9999; this version supports up to" in line
    assert list((tmp_path / "new").iterdir()) == []


async def test_passphrase_seals_the_keys_and_the_whole_manifest(world: ServiceWorld, tmp_path: Path) -> None:
    folder, passphrase = world.settings.data_dir, _secret(tmp_path)
    short = await _refusal("backup", tmp_path / "x", "--data-dir", folder, "--passphrase-file", passphrase)
    assert "needs --with-keys" in short
    passphrase.write_text("short")
    sealed = ("--with-keys", "--passphrase-file", passphrase)
    assert "at least 12 characters" in await _refusal("backup", tmp_path / "x", "--data-dir", folder, *sealed)
    passphrase.write_text(_PASSPHRASE)
    file = tmp_path / "sealed.zip"
    await _ok("backup", file, "--data-dir", folder, *sealed)

    def redated(_parts: dict[str, bytes], manifest: Json) -> None:
        manifest["created_at"] = "2020-01-01T00:00:00.000Z"

    altered = _rewrite(file, tmp_path / "altered.zip", redated)
    restore = ("--data-dir", tmp_path / "new", "--passphrase-file", passphrase)
    assert "the archive was altered" in await _refusal("restore", altered, *restore)
    unasked = await _run("restore", file, "--data-dir", tmp_path / "new", input="")
    assert (unasked.exit_code, unasked.output.splitlines()[-1]) == (1, "Aborted!")
    passphrase.write_text("another long passphrase")
    assert "the passphrase is wrong" in await _refusal("restore", file, *restore)
    passphrase.chmod(0o644)
    assert "mode 600" in await _refusal("restore", file, *restore)
    assert not (tmp_path / "new").exists()


async def test_backup_refuses_what_it_cannot_do(world: ServiceWorld, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("kept")
    assert "already exists" in await _refusal("backup", taken, "--data-dir", world.settings.data_dir)
    assert taken.read_text() == "kept"
    assert "no service data" in await _refusal("backup", tmp_path / "a", "--data-dir", tmp_path)
    nowhere = tmp_path / "no" / "folder" / "a"
    said = await _refusal("backup", nowhere, "--data-dir", world.settings.data_dir)
    assert f"there is no folder {nowhere.parent}; create it" in said
    assert "was not restored" in await _refusal("restore", "--gap-checked", "--data-dir", world.settings.data_dir)
    assert "pass the FILE" in await _refusal("restore", "--data-dir", world.settings.data_dir)
    assert "no service data" in await _refusal("restore", "--gap-checked", "--data-dir", tmp_path)
    assert _named(tmp_path) == ["taken"]
