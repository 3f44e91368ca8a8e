"""Facts about a reserve, a wallet or an escrow, according to the chain and according to the read models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.chain.records import RawAccount
from app.core.money import format_usdc
from app.projection.batch import address_or_none
from app.store.escrows import DISPUTED, OPEN
from app.store.reconciliation import EscrowModel, ReserveModel, WalletModel
from idl.codec import Account, Codec

Fact = str | bool | int | None
Facts = Mapping[str, Fact]
Model = ReserveModel | WalletModel | EscrowModel

BALANCE = "usdc_balance"
"""Name of the fact that is the balance of a reserve or wallet. Transfers by outsiders change it, too."""
COVERED = "covered"
"""Name of a fact: the escrow's token account holds at least its amount or, after a split, the shares still owed."""
HELD = "held_amount"
"""Name of a fact: the money of a wallet's outstanding allowances, recorded in the ledger of its vault."""
_Facts = dict[str, Fact]
_COUNTS = ("open_escrows", "open_allowances")
_ROLES = ("authority", "operator", "arbiter", "verifier")


@dataclass(frozen=True, slots=True)
class Subject:
    """An account that the reconciliation compares: its `address` and its token account.

    `stream` is the account that counts the events about the subject: the Org or the vault.
    """

    kind: Literal["reserve", "wallet", "escrow"]
    org: str
    address: str
    tokens: str
    stream: str
    escrow_id: str | None = None

    @property
    def accounts(self) -> tuple[str, ...]:
        """The addresses of the accounts to read, all from the same slot."""
        return self.address, self.tokens, self.stream


@dataclass(frozen=True, slots=True)
class OnChainState:
    """A subject on the chain: its facts, its balance, and the number of its stream's last event, if any."""

    facts: Facts
    balance: int
    sequence: int | None


def on_chain_state(subject: Subject, found: Mapping[str, RawAccount | None], codec: Codec) -> OnChainState:
    """Return a subject's state according to its accounts. Raises `ChainUnavailable` if an account is malformed."""
    tokens = found[subject.tokens]
    balance = (tokens.token_amount if tokens else None) or 0
    account, stream = (_decode(found[address], codec) for address in (subject.address, subject.stream))
    facts: _Facts = {}
    match subject.kind:
        case "reserve":
            if account is not None:
                data = account.data
                facts = {BALANCE: format_usdc(balance), "paused": bool(data["paused"])}
                facts |= {role: str(data[role]) for role in _ROLES}
        case "wallet":
            facts = {BALANCE: format_usdc(balance), "archived": account is None or account.name != "Vault"}
            if account is not None and account.name == "Vault":
                data = account.data
                facts |= {"frozen": bool(data["frozen"]), "policy": str(data["policy"])}
                facts |= {name: address_or_none(str(data[name])) for name in ("budget", "session_authority")}
                facts |= {name: int(data[name]) for name in _COUNTS} | {HELD: format_usdc(data["ledger"]["held"])}
        case "escrow":
            facts = {"open": account is not None}
            if account is not None:
                data = account.data
                amount, released = int(data["amount"]), int(data["released"])
                decided = bool(data["outcome"])
                # Of a split escrow, only the share of a party that could not be paid is left.
                shares = (released if data["receiver_owed"] else 0) + (amount - released if data["vault_owed"] else 0)
                facts |= {"amount": format_usdc(amount), "disputed": data["disputed_at"] != 0 and not decided}
                facts |= {COVERED: balance >= (shares if decided else amount)}
    number = None if stream is None else stream.data.get("sequence")
    return OnChainState(facts, balance, None if number is None else int(number))


def read_model_state(model: Model | None) -> Facts:
    """Return a subject's facts according to the read models; empty if they lack the subject."""
    match model:
        case ReserveModel():
            roles = {role: getattr(model, role) for role in _ROLES}
            return {BALANCE: format_usdc(model.balance), "paused": model.paused, **roles}
        case WalletModel():
            facts: _Facts = {
                BALANCE: format_usdc(model.balance),
                "archived": model.archived,
            }
            if not model.archived:
                facts |= {"frozen": bool(model.frozen), "policy": model.policy}
                facts |= {"budget": model.budget, "session_authority": model.session_authority}
                facts |= {name: getattr(model, name) for name in _COUNTS} | {HELD: format_usdc(model.held)}
            return facts
        case EscrowModel():
            if model.status not in OPEN and not model.owes:
                return {"open": False}
            disputed = model.status == DISPUTED
            return {"open": True, "amount": format_usdc(model.amount), "disputed": disputed, COVERED: True}
    return {}


def differing(chain: Facts, models: Facts) -> dict[str, dict[str, Fact]]:
    """Return the facts that differ, each with its value on the chain and in the service."""
    names = sorted(name for name in {*chain, *models} if chain.get(name) != models.get(name))
    return {name: {"chain": chain.get(name), "service": models.get(name)} for name in names}


def _decode(account: RawAccount | None, codec: Codec) -> Account | None:
    """Return the decoded account, or None if it is missing or holds only lamports, which anyone may send there."""
    return account.decode(codec) if account is not None and account.data else None
