"""`agent-vault roles`: shows and changes the keys that may act for an organisation."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from app.api.signing import awaiting_signature
from app.commands._sidecar import on_service
from app.commands.command_options import (
    address_argument,
    address_of,
    data_folder,
    org_option,
    rpc_url,
    settings_of,
    usdc_argument,
)
from app.core.paths import ConfigurationError
from app.core.settings import Settings
from app.core.signers import file_of, install_next, next_key, read_key, write_secret
from app.organisations import roles as organisation_roles
from app.server.data_folder import existing_sidecar_settings
from app.store.organisations import organisations as all_organisations
from app.submission.changes import carry_out
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.offline import local_authority
from app.submission.plan import Authority, AwaitingSignatureError, Plan

#: Lamports that a replaced fee payer keeps, so that transactions with its signature can still land.
_KEPT = 10_000_000
#: Minimum balance in lamports of a new fee payer before it is put in place.
_ENOUGH = 21_000_000
_FEE = 5_000
_RESTART = "Restart `agent-vault serve` and every `agent-vault keeper`: they read their keys only when they start."
_SESSIONS = (
    "Rotate the session token of every wallet: a holder of the old operator key may have set a session authority of "
    "their own. Approvals by the old key are no longer valid."
)

_key_file = click.option(
    "--keypair",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Key to sign with.  [default: the service's authority key]",
)
_offline = click.option(
    "--offline",
    "offline_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the unsigned transaction to this new file for `agent-vault sign`.",
)


@click.group()
def roles() -> None:
    """Show and change the keys that may act for an organisation."""


Change = Callable[[Service, str, Authority], Awaitable[None]]


class _Signing:
    """Signs a command's changes with a local key, or writes them to a file for signing offline."""

    def __init__(self, key_file: Path | None, offline_file: Path | None) -> None:
        if key_file is not None and offline_file is not None:
            raise click.UsageError("--keypair and --offline exclude each other")
        if offline_file is not None and offline_file.exists():
            raise click.ClickException(f"{offline_file} already exists; name a new file")
        self._key = None if key_file is None else read_key(key_file)
        self._file = offline_file

    async def by(self, service: Service, address: Pubkey) -> Authority:
        """Return the authority with this address.

        Raises ConfigurationError if a local key must sign, but is missing or has a different address.
        """
        if self._file is not None:
            return Authority(address, None)
        key = self._key or service.signers.authority
        if key is None:
            raise ConfigurationError(
                f"the data folder has no key for {address}. Name the key file with --keypair, or write the transaction "
                "to a file with --offline and sign it on the machine with the key"
            )
        if key.pubkey() != address:
            raise ConfigurationError(f"the key belongs to {key.pubkey()}; the change needs the key of {address}")
        return local_authority(key)

    async def run(self, service: Service, change: Awaitable[None], label: str | None = None) -> bool:
        """Await a change and return True, or return False if the change waits for a signature.

        A waiting transaction is written to a file. The file's name contains `label`, if given.
        """
        try:
            await change
        except AwaitingSignatureError as awaiting:
            answer = await awaiting_signature(service, awaiting.attempt)
            assert self._file is not None
            file = self._file if label is None else self._file.with_stem(f"{self._file.stem}-{label}")
            write_secret(file, answer.model_dump_json() + "\n")
            click.echo(f"Sign {file} with `agent-vault sign` before {answer.expires_at} and send the result to")
            click.echo("POST /v1/signed-transactions.")
            return False
        return True


def _change(given: dict[str, Any], signer: str, change: Change) -> bool:
    """Carry out a change signed by the holder of the role ``signer``. Return False if it waits for a signature."""
    org, key_file, offline_file = given.pop("org"), given.pop("key_file"), given.pop("offline_file")
    settings, signing = _settings(given), _Signing(key_file, offline_file)

    async def signed(service: Service) -> bool:
        address = address_of(service.db, org)
        holder = (await organisation_roles.roles_of(service, address))[signer]
        return await signing.run(service, change(service, address, await signing.by(service, holder)))

    return on_service(settings, signed)


def _settings(given: dict[str, Any]) -> Settings:
    return existing_sidecar_settings(settings_of(**given, keeper=False))


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the commands that change one organisation with a signature of its authority."""
    for option in (data_folder, rpc_url, org_option, _key_file, _offline):
        command = option(command)
    return command


def withdraw_from_reserve(amount: int | None, owner: Pubkey, **given: Any) -> None:
    """Withdraw `amount` micro-USDC, or everything if None, from an organisation's reserve to `owner`."""
    if _change(given, "authority", partial(organisation_roles.withdraw_reserve, amount=amount, owner=owner)):
        click.echo("Withdrawn.")


def amount_argument(ctx: click.Context, param: click.Parameter, text: str) -> int | None:
    """Parse an amount of USDC and return micro-USDC, or None for `all`."""
    return None if text == "all" else usdc_argument(ctx, param, text)


@roles.command("show")
@data_folder
@rpc_url
@org_option
def show_roles(org: str | None, **given: Any) -> None:
    """Show the address of each role on the chain, and of the service's fee payer."""

    async def show(service: Service) -> None:
        found = await organisation_roles.roles_of(service, address_of(service.db, org))
        for name, address in found.items():
            click.echo(f"{name}: {'nobody' if address == Pubkey.default() else address}")
        click.echo(f"fee_payer: {service.signers.fee_payer_address}")

    on_service(_settings(given), show)


@roles.command("set")
@click.option("--operator", callback=address_argument, help="Address of the next operator.")
@click.option("--arbiter", callback=address_argument, help="Address of the next arbiter.")
@click.option("--verifier", callback=address_argument, help="Address of the next verifier.")
@change_options
def set_roles(operator: Pubkey | None, arbiter: Pubkey | None, verifier: Pubkey | None, **given: Any) -> None:
    """Give roles to other addresses. This does not change the keys in the data folder."""
    named = {"operator": operator, "arbiter": arbiter, "verifier": verifier}
    changes = {name: address for name, address in named.items() if address is not None}
    if not changes:
        raise click.UsageError("name at least one of --operator, --arbiter and --verifier")

    async def change(service: Service, org: str, authority: Authority) -> None:
        await organisation_roles.change_roles(service, org, authority, **changes)

    if _change(given, "authority", change):
        click.echo("\n".join(f"{name}: {address}" for name, address in changes.items()))
        if operator is not None:
            click.echo(_SESSIONS)


@roles.command("propose-authority")
@click.argument("address", callback=address_argument)
@change_options
def propose_authority(address: Pubkey, **given: Any) -> None:
    """Propose a new authority. The new authority takes over once it has accepted."""
    if _change(given, "authority", partial(organisation_roles.change_roles, pending_authority=address)):
        click.echo(f"{address} is proposed. To take over, run `agent-vault roles accept-authority` with its key.")


@roles.command("accept-authority")
@change_options
def accept_authority(**given: Any) -> None:
    """Take over as the proposed authority, with its key."""
    if _change(given, "pending_authority", organisation_roles.accept_authority):
        click.echo("The proposed authority has taken over.")


@roles.command("rotate")
@click.argument("role", type=click.Choice(["operator", "arbiter", "fee-payer"]))
@data_folder
@rpc_url
@_key_file
@_offline
def rotate(role: str, key_file: Path | None, offline_file: Path | None, **given: Any) -> None:
    """Replace a key in the data folder: create a new key, give it the role, and put it in place.

    With --offline, repeat the command after the signed transaction has landed. Old keys are kept as ROLE.old.json,
    ROLE.old-2.json and so on.
    """
    settings = _settings(given)
    name = f"{role.replace('-', '_')}_key"
    if getattr(settings, name) is not None:
        raise ConfigurationError(
            f"AGENT_VAULT_{name.upper()} names the {role}'s key. Create the next key in the same place, give it the "
            "role with `agent-vault roles set` (a fee payer needs SOL instead), and change the setting"
        )
    signing = _Signing(key_file, offline_file)

    async def give(service: Service) -> bool:
        if role == "fee-payer":
            await _fill(service, settings)
            return True
        return await _give_role(service, settings, role, signing)

    if not on_service(settings, give):
        click.echo("Once the signed transaction has landed, put the new key in place:")
        click.echo(f"repeat `agent-vault roles rotate {role}`.")
        return
    install_next(settings.paths().keys, role)
    click.echo(f"The {role} has a new key.")
    click.echo(_RESTART)
    if role == "operator":
        click.echo(_SESSIONS)


async def _give_role(service: Service, settings: Settings, role: str, signing: _Signing) -> bool:
    """Give the role to the folder's next key in every organisation that still has the current key.

    Return False if some changes wait for a signature. Raises ConfigurationError if no organisation has the current or
    the next key in this role, because the new key would then be useless.
    """
    folder = settings.paths().keys
    new = next_key(folder, role).pubkey()
    signer = service.signers.operator if role == "operator" else service.signers.arbiter
    every = await service.db.read(all_organisations)
    if not every:
        raise ConfigurationError("there is no organisation yet; create one with `agent-vault orgs create`")
    strangers, done = [], True
    for one in every:
        found = await organisation_roles.roles_of(service, one.org)
        present = found[role] if signer is None else signer.pubkey()
        # The arbiter's key is also the verifier's, unless the verifier's role was given to another key.
        own = {name: found[name] for name in ((role, "verifier") if role == "arbiter" else (role,))}
        changes = {name: new for name, address in own.items() if address == present != new}
        if changes:
            authority = await signing.by(service, found["authority"])
            change = organisation_roles.change_roles(service, one.org, authority, **changes)
            done = await signing.run(service, change, one.org_id if len(every) > 1 else None) and done
        elif new not in own.values():
            file = file_of(folder, role, found[role])
            kept = "its key is not in the data folder" if file is None else f"its key is in {file}"
            strangers.append(f"on the chain the {role} of {one.org_id} is {found[role]} ({kept})")
    if len(strangers) == len(every):
        raise ConfigurationError(
            f"{'; '.join(strangers)}. Nothing was replaced. Give the role to the next key with `agent-vault roles set "
            f"--{role} {new}`, then repeat this command"
        )
    for stranger in strangers:
        click.echo(f"Not changed: {stranger}")
    return done


async def _fill(service: Service, settings: Settings) -> None:
    """Move the fee payer's SOL to the folder's next fee payer, except for an amount that earlier transactions may need.

    Raises ConfigurationError if the next fee payer would have too little SOL.
    """
    new = next_key(settings.paths().keys, "fee-payer").pubkey()
    old = service.signers.fee_payer
    accounts = await service.chain.accounts([old.pubkey(), new])
    has, arrived = (0 if account is None else account.lamports for account in accounts)
    movable = has - _KEPT - _FEE
    if arrived + max(0, movable) < _ENOUGH:
        raise ConfigurationError(f"send at least {_ENOUGH / 10**9} SOL to the new fee payer {new}, then try again")
    if movable > 0:
        step = transfer(TransferParams(from_pubkey=old.pubkey(), to_pubkey=new, lamports=movable))
        org = (await service.db.read(all_organisations))[0].org
        plan = Plan(org=org, type=organisation_roles.TRANSFER, instructions=[step], signers=[])
        await carry_out(service, plan, Claim(service.db))
