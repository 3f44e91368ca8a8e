"""Makes a new service ready to try: creates an organisation with a reserve, an admin key and two wallets."""

import shlex
from dataclasses import dataclass

from app.access.keyring import KeyRing, Principal, system
from app.core.money import MICRO_PER_USDC
from app.core.paths import Paths
from app.core.signers import write_secret
from app.core.timestamps import now_ms
from app.localnet import Localnet
from app.organisations import service as organisations
from app.store.organisations import organisation_by_id, reserve
from app.store.values import get_value, put_value
from app.store.wallets import WalletRecord, wallet_by_agent
from app.submission.claim import Claim
from app.submission.context import Service
from app.wallets import funding
from app.wallets import service as wallets
from app.wallets.models import CreateWallet, FundWallet

ORG_ID = "default"
#: Amounts from the embedded chain's faucet: micro-USDC for the reserve, lamports for fees.
RESERVE = 1_000_000 * MICRO_PER_USDC
LAMPORTS = 1_000 * 10**9
_LOW_LAMPORTS = 10**9
_DEMO_FUNDS = "100"
#: Name of the stored value that marks a completed quickstart.
_DONE = "quickstart"
#: Id of the quickstart as an actor.
_PART = "quickstart"


@dataclass(frozen=True, slots=True)
class Quickstart:
    """The objects to try: the organisation and two wallets, and the admin key if it is new."""

    org: str
    payer: WalletRecord
    payee: WalletRecord
    new_key: str | None

    def curl(self, base_url: str, paths: Paths) -> str:
        """Return a shell command that makes a payment."""
        key_file = shlex.quote(str(paths.admin_key.resolve()))
        body = (
            f'{{"walletId":"{self.payer.wallet_id}","to":"{self.payee.vault}",'
            '"amount":"1.25","currency":"USDC","memo":"first payment"}'
        )
        return (
            f'curl -sS {shlex.quote(base_url + "/v1/payments")} -H "Authorization: Bearer $(cat {key_file})" '
            # Each run of the command is another intended payment.
            f"-H 'Content-Type: application/json' -H \"Idempotency-Key: $(date +%s%N)\" -d {shlex.quote(body)}"
        )


async def quickstart(service: Service, localnet: Localnet | None, paths: Paths) -> Quickstart | None:
    """Create the missing objects. Every step is repeatable, so the next start completes an interrupted quickstart.

    Does nothing and returns None on a cluster, where ``orgs create`` makes organisations. Without the authority's key,
    only fills the fee payer and returns None.
    """
    if localnet is None:
        return None
    await fill_fee_payer(service, localnet)
    if service.signers.authority is None:
        return None
    done = await service.db.read(lambda conn: get_value(conn, _DONE)) is not None
    # The organisation's address derives from its first authority, which may have been replaced since.
    known = await service.db.read(lambda conn: organisation_by_id(conn, ORG_ID)) if done else None
    organisation = known or await organisations.create(service, ORG_ID)
    org = organisation.org
    found = await service.db.read(lambda conn: reserve(conn, org))
    if not done and (found is None or found.balance == 0):
        await localnet.mint_usdc(service.instructions(org).reserve_tokens, RESERVE)
        await service.catch_up()
    admin = system(org, _PART)
    new_key = None
    if not paths.admin_key.exists():
        new_key = service.part(KeyRing).create(org=org, role="admin", name="quickstart", by=_PART)
        write_secret(paths.admin_key, new_key + "\n")
    payer = await _wallet(service, admin, "demo-agent", "Demo agent")
    payee = await _wallet(service, admin, "demo-merchant", "Demo merchant")
    if not done:
        if payer.balance == 0:
            body = FundWallet.model_validate({"amount": _DEMO_FUNDS})
            await funding.fund(service, admin, Claim(service.db), payer.wallet_id, body)
        await service.db.write(lambda conn: put_value(conn, _DONE, str(now_ms())))
    return Quickstart(org, payer, payee, new_key)


async def fill_fee_payer(service: Service, localnet: Localnet) -> None:
    """Give the fee payer 1,000 SOL from the embedded chain's faucet if it has less than one."""
    address = service.signers.fee_payer_address
    account = await service.chain.account(address)
    if account is None or account.lamports < _LOW_LAMPORTS:
        await localnet.airdrop(address, LAMPORTS)


async def _wallet(service: Service, admin: Principal, agent_id: str, label: str) -> WalletRecord:
    found = await service.db.read(lambda conn: wallet_by_agent(conn, admin.org, agent_id, service.clock.seen_ms()))
    if found is None:
        body = CreateWallet(agent_id=agent_id, label=label, policy_id="pol_moderate", tags=["demo"])
        made = await wallets.create(service, admin, Claim(service.db), body)
        found = await wallets.find(service, admin.org, made.wallet_id)
    return found
