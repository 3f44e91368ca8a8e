"""`agent-vault backup` and `agent-vault restore`: save a data folder and create one from the archive."""

import hmac
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import click
from sqlalchemy import Connection

from app.commands._archive import DATA, KEYS, Manifest, create_archive, extract, extract_keys, open_archive
from app.commands.command_options import data_folder, open_database, record_for_all, settings_of
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.core.signers import KeyFileError, read_secret
from app.core.timestamps import iso_ms, now_ms
from app.database import SqliteDatabase
from app.database.interface import WRITE_ERRORS
from app.database.sqlite import copy_database
from app.server.bootstrap import service_secret
from app.server.data_folder import require_data
from app.server.databases import IN_USE, data_name, require_file, require_intact
from app.store.guard import forgotten_transactions, mark_checked, mark_restored
from app.store.organisations import organisations
from app.store.schema import create_tables
from app.store.values import put_value

_MIN_PASSPHRASE = 12
_STAGE = "restoring"

_passphrase_file = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with mode 600 that holds the passphrase of the keys.  [default: prompt for it]",
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@data_folder
@click.option(
    "--with-keys", is_flag=True, help="Include the signing keys and the service's secret, sealed under a passphrase."
)
@_passphrase_file
def backup(file: Path, data_dir: Path | None, passphrase_file: Path | None, *, with_keys: bool) -> None:
    """Back up the data folder to a new FILE. The service may be running. Keys are included only with --with-keys."""
    settings = settings_of(data_dir=data_dir)
    require_file(settings, "this command")
    require_data(settings)
    paths = settings.paths()
    if file.exists():
        raise ConfigurationError(f"{file} already exists; name a new file")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}; create it, or name a file in another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"this user may not write to {folder}; name a file in another folder")
    if passphrase_file is not None and not with_keys:
        raise click.UsageError("--passphrase-file needs --with-keys")
    secret = service_secret(settings)
    passphrase = _passphrase(passphrase_file, new=True) if with_keys else ""
    manifest = Manifest(created_at=iso_ms(now_ms()), files={})
    with tempfile.TemporaryDirectory(prefix=".agent-vault-", dir=folder) as name:
        files = _snapshots(paths, Path(name))
        keys = (
            {found: paths.root / found for found in _names(paths.root) if KEYS.fullmatch(found)} if with_keys else None
        )
        create_archive(file.absolute(), manifest, files, keys, passphrase, secret=secret)
    paths.backed_up.touch()
    click.echo(f"{file}: {len(files)} files as of {manifest.created_at}")
    click.echo(f"Fingerprint: {manifest.fingerprint()}")
    if keys is None:
        click.echo(
            f"The keys are not included: keep a copy of {paths.keys} elsewhere. Renew the copy when a key changes."
        )
    else:
        click.echo(f"{len(keys)} key files are included, sealed. They cannot be opened without the passphrase.")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@data_folder
@click.option(
    "--gap-checked",
    is_flag=True,
    help="Declare that payments made after the backup will not be repeated. Omit FILE if you restored earlier, or if "
    "the database has lost commits.",
)
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Your copy of keys/service-secret, with mode 600. It verifies an archive without keys.  [default: the file in "
    "AGENT_VAULT_KEYS_DIR]",
)
@click.option("--fingerprint", help="Accept only the archive with this fingerprint, which `backup` printed.")
@click.option("--accept-unverified", is_flag=True, help="Restore an archive even if nothing proves who made it.")
@_passphrase_file
def restore(
    file: Path | None,
    data_dir: Path | None,
    passphrase_file: Path | None,
    secret_file: Path | None,
    fingerprint: str | None,
    *,
    gap_checked: bool,
    accept_unverified: bool,
) -> None:
    """Restore FILE into a new or empty data folder. Without FILE, only apply --gap-checked to existing data."""
    settings = settings_of(data_dir=data_dir)
    if file is None:
        _declare_checked(settings, gap_checked=gap_checked)
        return
    require_file(settings, "this command")
    paths = settings.paths()
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}")
    try:
        if paths.root.exists() and any(paths.root.iterdir()):
            raise ConfigurationError(f"{paths.root} is not empty; name a new folder with --data-dir")
    except NotADirectoryError:
        raise ConfigurationError(
            f"the data folder {paths.root} is not a folder; name a new folder with --data-dir"
        ) from None
    with open_archive(file) as (archive, manifest):
        proof = None
        if fingerprint is not None or manifest.sealed is not None or not accept_unverified:
            proof = _proof(file, manifest, settings, secret_file, fingerprint)
        with _stage(paths.root) as stage:
            if manifest.sealed is not None:
                extract_keys(archive, manifest, stage, lambda: _passphrase(passphrase_file, new=False))
            extract(archive, manifest, stage)
            _adopt(Paths(stage), file, manifest, gap_checked=gap_checked, verified_by=proof)
    click.echo(f"Restored {paths.root} as of {manifest.created_at}.")
    if manifest.sealed is None:
        click.echo(f"The archive has no keys: put your copy of the folder `keys` (files with mode 600) at {paths.keys}")
        if paths.localnet.exists():
            click.echo(f"and your copy of the embedded chain's key at {paths.localnet / 'faucet.json'}")
    click.echo("API keys created after the backup are unknown. Keys revoked after it are valid again: revoke them now.")
    if gap_checked:
        click.echo("The gap since the backup is declared checked: payments need no afterRestore.")
    else:
        click.echo(
            "For 24 hours, payments with idempotency keys unknown to this copy need afterRestore=true. "
            "To end this, run: agent-vault restore --gap-checked"
        )


def _proof(
    file: Path, manifest: Manifest, settings: Settings, secret_file: Path | None, fingerprint: str | None
) -> str:
    """Return the kind of proof that an archive was not altered: `fingerprint`, `passphrase` or `mac`.

    Raises ConfigurationError if no proof is possible, or if the proof fails.
    """
    if fingerprint is not None:
        if fingerprint.strip().lower() != manifest.fingerprint():
            raise ConfigurationError(f"{file} has another fingerprint: it is another archive, or it was altered")
        return "fingerprint"
    if manifest.sealed is not None:
        # The seal covers the manifest. The MAC would prove nothing: its key may be in the archive.
        return "passphrase"
    if secret_file is None and not settings.paths().secret.exists():
        raise ConfigurationError(
            f"{file} cannot be verified: name your copy of keys/service-secret with --secret-file, or pass the "
            "fingerprint that `backup` printed with --fingerprint"
        )
    mac = manifest.mac_under(service_secret(settings, secret_file))
    if not hmac.compare_digest(mac.encode(), (manifest.mac or "").encode()):
        raise ConfigurationError(
            f"{file} was altered, or was made with another secret or by a version without MACs; "
            "--accept-unverified restores it anyway"
        )
    return "mac"


def _declare_checked(settings: Settings, *, gap_checked: bool) -> None:
    if not gap_checked:
        raise click.UsageError(
            "pass the FILE to restore, or --gap-checked for data that was restored earlier or has lost commits"
        )
    with open_database(settings.data_dir) as (db, _ring):
        if not db.write_now(_check):
            raise ConfigurationError(
                f"there is no gap to declare checked: {data_name(settings)} was not restored and has lost no commits"
            )
        for one in db.read_now(organisations):
            for event in db.read_now(partial(forgotten_transactions, org=one.org)):
                shown = event.payload
                where = f"{shown.get('wallet_id', one.org_id)} to {shown['recipient']}"
                click.echo(f"{event.signature} {shown['timestamp']} {where} {shown['amount']} USDC")
    click.echo("The gap in the records is declared checked: payments no longer need afterRestore.")


def _check(conn: Connection) -> bool:
    if not mark_checked(conn):
        return False
    record_for_all(conn, "backup.gap_checked")
    return True


def _snapshots(paths: Paths, folder: Path) -> dict[str, Path]:
    """Copy the databases and the exports into a folder. Return the copies by their names in the data folder."""
    copies = {}
    for source in filter(Path.exists, paths.databases):
        copies[str(source.relative_to(paths.root))] = copy = folder / source.name
        try:
            copy_database(source, copy)
        except sqlite3.Error as error:
            raise ConfigurationError(f"cannot copy {source}: {error}") from None
    for number, name in enumerate(_names(paths.root)):
        if DATA.fullmatch(name) and name.startswith("exports/"):
            try:
                shutil.copyfile(paths.root / name, folder / f"export-{number}")
            except FileNotFoundError:
                continue  # The export has expired since the listing.
            copies[name] = folder / f"export-{number}"
    return copies


def _names(root: Path) -> list[str]:
    """Return the files in the data folder and its direct subfolders, as relative names, without symbolic links."""
    found = (path for path in [*root.iterdir(), *root.glob("*/*")] if path.is_file() and not path.is_symlink())
    return sorted(path.relative_to(root).as_posix() for path in found)


@contextmanager
def _stage(root: Path) -> Iterator[Path]:
    """Yield a folder to restore into.

    At the end, the content moves to the data folder. After an error, the folder and its content are removed.
    """
    existed = root.exists()
    stage = root / _STAGE
    stage.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    try:
        yield stage
        # Move the service's database last: without it, the folder does not count as a service's data.
        for path in sorted(stage.iterdir(), key=lambda one: one.name == Paths(stage).database.name):
            path.rename(root / path.name)
        stage.rmdir()
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        if not existed:
            shutil.rmtree(root, ignore_errors=True)
        raise


def _adopt(paths: Paths, file: Path, manifest: Manifest, *, gap_checked: bool, verified_by: str | None) -> None:
    """Upgrade a restored database to this version's schema and mark it as restored."""

    def mark(conn: Connection) -> None:
        put_value(conn, IN_USE, "")
        mark_restored(conn, gap_checked=gap_checked)
        details = {"backup_of": manifest.created_at, "gap_checked": gap_checked, "verified_by": verified_by}
        record_for_all(conn, "backup.restore", **details)

    try:
        require_intact(paths.database, paths.events)
        with closing(SqliteDatabase(paths.database, create_tables)) as db:
            db.write_now(mark)
    except ConfigurationError as error:
        # The message starts with a path in the temporary folder, which means nothing to the user.
        raise ConfigurationError(f"{file}: {str(error).removeprefix(f'{paths.database}: ')}") from None
    except WRITE_ERRORS as error:
        raise ConfigurationError(f"{file}: its database cannot be used ({str(error).splitlines()[0]})") from None
    for path in paths.root.rglob("*"):
        if path.is_file():
            with path.open("rb") as content:
                os.fsync(content.fileno())


def _passphrase(file: Path | None, *, new: bool) -> str:
    given = _ask(new=new) if file is None else _read(file)
    if new and len(given) < _MIN_PASSPHRASE:
        raise ConfigurationError(f"the passphrase must have at least {_MIN_PASSPHRASE} characters")
    return given


def _ask(*, new: bool) -> str:
    prompt: Callable[..., str] = click.prompt
    return prompt("Passphrase of the keys", hide_input=True, confirmation_prompt=new, err=True)


def _read(file: Path) -> str:
    try:
        return read_secret(file).rstrip("\r\n")
    except UnicodeDecodeError:
        raise KeyFileError(f"{file}: not text") from None
