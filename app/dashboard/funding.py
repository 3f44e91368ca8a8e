"""Funding: deposits into the reserve, transfers between the reserve and the vaults, and automatic top-ups."""

from collections.abc import Mapping
from functools import partial

import segno
from markupsafe import Markup
from starlette.responses import Response

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api.forms import Arguments, InvalidFormError, validated
from app.core.errors import BusinessError, RequestError
from app.core.money import parse_usdc
from app.dashboard.fleet import addresses
from app.dashboard.forms.formatting import usdc
from app.dashboard.forms.review import BeforeAfter, Review, ask
from app.dashboard.forms.submit_once import once
from app.dashboard.pages import View, action, page
from app.dashboard.weights import charge
from app.organisations import service as organisations
from app.organisations.deposits import deposit_address
from app.organisations.models import UpdateOrganization
from app.store.organisations import reserve_balance
from app.store.wallets import WalletRecord
from app.submission.fee_payer import LIMITS
from app.topups import overview
from app.topups import service as topups
from app.topups.models import PutTopupRule, TopupRule
from app.topups.overview import FundingQuery
from app.wallets import funding
from app.wallets import service as wallets
from app.wallets.models import (
    MAX_ALLOCATIONS,
    Allocation,
    Funded,
    FundedBatch,
    FundWallet,
    FundWallets,
    WithdrawFromWallet,
    Withdrawn,
)

#: Prefix of the amount fields. Each vault of the table has its own field.
_AMOUNT_OF = "amount_"
_FUND, _WITHDRAW = "fund_amount", "withdraw_amount"
_HERE = "Funding"


@page("/funding", roles=READERS)
async def show(view: View) -> Response:
    """Show the reserve, its deposit address, and a page of the vaults with their balances."""
    query = view.understood(FundingQuery)
    deposit = await deposit_address(view.service, view.principal)
    found = await overview.show(view.service, view.principal, query)
    charge(view.request, view.principal, found.totals.summed)
    return view.render(
        "funding.html",
        deposit=deposit,
        qr=_qr(deposit.organization.reserve_address),
        funding=found,
        query=query,
        address=addresses(view, query, "funding"),
        most=MAX_ALLOCATIONS,
    )


@action("/funding/sol", roles=ADMINS, back=show, step_up=True)
async def limit_sol(view: View) -> str:
    """Set the organisation's own limits in SOL. For an empty field, the limit of the service applies again."""
    body = view.body(UpdateOrganization)
    empty = {name: None for name in LIMITS if name not in body.model_fields_set}
    await organisations.limit_sol(view.service, view.principal, view.claim(), body.model_copy(update=empty))
    return view.url("funding", done="sol-limits-saved")


def _qr(address: str) -> Markup:
    """Return an address as a QR code in SVG, dark on light so that cameras can read it. The SVG has no inline style."""
    made = segno.make_qr(address, error="m")
    title = f"QR code of {address}"
    return Markup(made.svg_inline(omitsize=True, light="#fff", svgclass="qr", lineclass=None, title=title))  # noqa: S704


@action("/funding/review", roles=OPERATORS, back=show)
async def review_many(view: View) -> Response:
    """Show how funding the chosen vaults would change their balances and the reserve."""
    body = _allocations(view)
    receiving = await overview.receivers(view.service, view.principal, body)
    total = sum(one.amount for one in body.allocations)
    reserve = await _reserve(view, total)
    shifts = [BeforeAfter.of("Reserve", reserve, reserve - total)]
    for wallet, one in zip(receiving, body.allocations, strict=True):
        shifts.append(BeforeAfter.of(_name(wallet), wallet.balance, wallet.balance + one.amount))
    vaults = f"{len(receiving)} vaults" if len(receiving) > 1 else _name(receiving[0])
    text = f"{usdc(total)} USDC moves from the reserve to {vaults}, in one transaction: all amounts or none."
    return ask(view, Review("Fund vaults", text, shifts, "Fund", view.url("funding", "fund"), _HERE))


@action("/funding/fund", roles=OPERATORS, back=show, step_up=True)
async def fund_many(view: View) -> str:
    """Fund vaults in one transaction."""
    body = _allocations(view)
    done = await once(view, body, FundedBatch, view.asks(funding.fund_batch, body))
    return view.url("funding", done="funding-pending" if done.status == "pending" else "funded")


@page("/vaults/{wallet_id}/funding", roles=READERS)
async def of_vault(view: View) -> Response:
    """Show a vault's balance, and the forms that change it."""
    service, by, wallet_id = view.service, view.principal, view.path("wallet_id")
    return view.render(
        "vault_funding.html",
        wallet=await wallets.find(service, by.org, wallet_id),
        reserve=await service.db.read(lambda conn: reserve_balance(conn, by.org)),
        rule=await topups.get(service, by, wallet_id),
    )


@action("/vaults/{wallet_id}/fund/review", roles=OPERATORS, back=of_vault)
async def review_fund(view: View) -> Response:
    """Show how funding a vault would change its balance and the reserve."""
    wallet = await _wallet(view, living=True)
    amount = _money(view, FundWallet, _FUND).amount
    reserve = await _reserve(view, amount, _FUND)
    shifts = (
        BeforeAfter.of("Reserve", reserve, reserve - amount),
        BeforeAfter.of(_name(wallet), wallet.balance, wallet.balance + amount),
    )
    text = f"{usdc(amount)} USDC moves from the reserve to {_name(wallet)}."
    return ask(view, Review("Fund the vault", text, shifts, "Fund", _place(view, "fund"), _HERE))


@action("/vaults/{wallet_id}/fund", roles=OPERATORS, back=of_vault)
async def fund(view: View) -> str:
    """Fund the vault."""
    wallet_id, body = view.path("wallet_id"), _money(view, FundWallet, _FUND)
    limit = None if view.stepped_up else parse_usdc(view.service.settings.funding_without_step_up, allow_zero=True)
    change = partial(funding.fund, daily_sum=limit)
    done = await once(view, body, Funded, view.asks(change, wallet_id, body))
    return _place(view, "funding", done="funding-pending" if done.status == "pending" else "funded")


@action("/vaults/{wallet_id}/withdraw/review", roles=OPERATORS, back=of_vault)
async def review_withdrawal(view: View) -> Response:
    """Show how a withdrawal would change the vault's balance and the reserve."""
    wallet = await _wallet(view)
    asked = _money(view, WithdrawFromWallet, _WITHDRAW).amount
    if wallet.balance < (asked or 1):
        # The read models may be behind. The vault may already hold more.
        await view.service.catch_up()
        wallet = await _wallet(view)
    if wallet.balance < (asked or 1):
        says = f"{_WITHDRAW}: The vault holds {usdc(wallet.balance)} USDC. Withdraw no more than that."
        raise BusinessError("withdrawal_exceeds_balance", says)
    amount = wallet.balance if asked is None else asked
    reserve = await _reserve(view, 0)
    shifts = (
        BeforeAfter.of(_name(wallet), wallet.balance, wallet.balance - amount),
        BeforeAfter.of("Reserve", reserve, reserve + amount),
    )
    text = f"{usdc(amount)} USDC moves from {_name(wallet)} to the reserve."
    if asked is None:
        text = f"The full balance of {_name(wallet)} moves to the reserve. It is {usdc(amount)} USDC now."
    return ask(view, Review("Withdraw", text, shifts, "Withdraw", _place(view, "withdraw"), _HERE))


@action("/vaults/{wallet_id}/withdraw", roles=OPERATORS, back=of_vault, step_up=True)
async def withdraw(view: View) -> str:
    """Move money from the vault back to the reserve."""
    wallet_id, body = view.path("wallet_id"), _money(view, WithdrawFromWallet, _WITHDRAW)
    done = await once(view, body, Withdrawn, view.asks(funding.withdraw, wallet_id, body))
    pending = done.transaction_status == "pending"
    return _place(view, "funding", done="withdrawal-pending" if pending else "withdrawn")


@action("/vaults/{wallet_id}/auto-topup/review", roles=OPERATORS, back=of_vault)
async def review_topup(view: View) -> Response:
    """Show the effect of a changed rule for automatic top-ups."""
    wallet = await _wallet(view, living=True)
    body = _rule(view)
    rule = await topups.get(view.service, view.principal, wallet.wallet_id)
    shifts = (
        BeforeAfter("Automatic top-up", "on" if rule.enabled else "off", "on" if body.enabled else "off"),
        BeforeAfter("When the vault holds less than", usdc(rule.trigger_below), usdc(body.trigger_below)),
        BeforeAfter("The reserve adds", usdc(rule.topup_amount), usdc(body.topup_amount)),
    )
    text = f"{_name(wallet)} holds {usdc(wallet.balance)} USDC."
    if body.enabled and body.trigger_below is not None and wallet.balance < body.trigger_below:
        text += " That is less than the new limit, so a top-up is due once the vault can be funded."
    path = _place(view, "auto-topup")
    return ask(view, Review("Automatic top-up", text, shifts, "Save the rule", path, _HERE, moves=False))


@action("/vaults/{wallet_id}/auto-topup", roles=OPERATORS, back=of_vault)
async def put_topup(view: View) -> str:
    """Replace the vault's rule for automatic top-ups."""
    wallet_id, body = view.path("wallet_id"), _rule(view)
    await once(view, body, TopupRule, view.asks(topups.put, wallet_id, body, view.stepped_up))
    return _place(view, "funding", done="topup")


def _money(view: View, model: type[Arguments], field: str, **values: str) -> Arguments:
    """Return the API's body with the amount typed into ``field``.

    Raises InvalidFormError with a message at that field.
    """
    given: dict[str, object] = {"amount": view.typed(field).strip(), **values}
    if "idempotency_key" in model.model_fields:
        given |= _confirmed(view)
    try:
        return validated(model, given)
    except InvalidFormError as error:
        if "amount" in error.messages:
            error.messages = {field: error.messages["amount"]}
        raise


def _confirmed(view: View) -> Mapping[str, object]:
    """Return the fields that the confirmation page adds to a form."""
    return {
        "idempotency_key": view.typed("idempotency_key"),
        "after_restore": view.typed("after_restore") == "true",
    }


def _allocations(view: View) -> FundWallets:
    """Return the body that funds each vault with a typed amount.

    Raises InvalidFormError with a message at each invalid amount, and ``invalid_request`` for no or too many amounts.
    """
    found, wrong = [], None
    for name, value in view.form:
        if not (name.startswith(_AMOUNT_OF) and value.strip()):
            continue
        try:
            found.append(_money(view, Allocation, name, wallet_id=name.removeprefix(_AMOUNT_OF)))
        except InvalidFormError as error:
            wrong = wrong or error
            wrong.messages = {**wrong.messages, **error.messages}
    if wrong is not None:
        raise wrong
    if not found:
        raise RequestError("invalid_request", "Type an amount next to each vault that you want to fund.")
    if len(found) > MAX_ALLOCATIONS:
        raise RequestError("invalid_request", f"One transaction funds at most {MAX_ALLOCATIONS} vaults.")
    return validated(FundWallets, {"allocations": found, **_confirmed(view)})


def _rule(view: View) -> PutTopupRule:
    """Return the typed rule for automatic top-ups. Raises InvalidFormError and ``invalid_request``."""
    enabled = view.typed("enabled") == "true"
    given = {name: view.typed(name).strip() for name in ("trigger_below", "topup_amount")}
    for name, value in given.items():
        if enabled and not value:
            raise RequestError("invalid_request", f"{name}: This field is required while the rule is on.")
    return validated(PutTopupRule, {**given, "enabled": enabled, "idempotency_key": view.typed("idempotency_key")})


async def _reserve(view: View, needed: int, field: str = "") -> int:
    """Return the reserve's balance, in micro-USDC.

    Raises ``org_insufficient_balance`` if it is below ``needed`` even after catch-up.
    """
    org = view.principal.org
    held = await view.service.db.read(lambda conn: reserve_balance(conn, org))
    if held < needed:
        # The read models may not yet include a recent deposit.
        await view.service.catch_up()
        held = await view.service.db.read(lambda conn: reserve_balance(conn, org))
    if held < needed:
        says = f"The reserve holds {usdc(held)} USDC, which is less than {usdc(needed)}. Deposit USDC first."
        raise BusinessError("org_insufficient_balance", f"{field}: {says}" if field else says)
    return held


async def _wallet(view: View, *, living: bool = False) -> WalletRecord:
    find = wallets.find_living if living else wallets.find
    return await find(view.service, view.principal.org, view.path("wallet_id"))


def _name(wallet: WalletRecord) -> str:
    return wallet.label or wallet.wallet_id


def _place(view: View, name: str, **query: str) -> str:
    return view.url("vaults", view.path("wallet_id"), name, **query)
