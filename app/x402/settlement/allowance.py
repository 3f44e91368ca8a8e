"""Payments out of an allowance, for facilitators and servers that settle plain transfers only.

The vault sets the price aside for a delegate with a one-time key. The key signs only the transfer that pays. The signed
transfer is stored before the money is set aside, and the key is never stored. The token program does not bind a
delegate to a destination, but without its key a delegate can make only the transfer that it has already signed.
"""

from contextlib import suppress
from dataclasses import replace

from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.allowances.granting import GRANT, admit_grant, grant_plan, granting
from app.allowances.service import end
from app.chain.fees import TRANSFER
from app.chain.transactions import sign_for, sign_with_any
from app.core.transaction_types import ALLOWANCE
from app.payments.expenses import ExpenseRequest
from app.payments.late_refusal import late_refusal
from app.payments.refusals import NO_ACCOUNT, require_account, unverified_refusal
from app.payments.sending import submit_expense
from app.payments.token_accounts import lacks_token_account
from app.store.allowances import OUTSTANDING, PENDING, SETTLED, AllowanceRecord, allowance_of_transaction
from app.store.attempts import Attempt
from app.store.x402 import IssuedPayment, insert_issued_payment, record_transfer
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Outcome, Plan
from app.x402.credential import transaction_of
from app.x402.payer import PaidResourceTerms, Payer
from app.x402.settlement.instructions import delegate_transfer
from idl.transactions import IncompleteTransactionError, UnreadableTransactionError, message_hash, signed

#: Seconds until the allowance expires, unless its policy or session expires first. This is longer than a blockhash
#: normally lives.
_SECONDS = 90


async def pay_by_allowance(payer: Payer, bought: PaidResourceTerms) -> tuple[IssuedPayment, Outcome]:
    """Set the price of an offer aside for a delegate. The delegate's transfer is signed and stored first.

    Returns once the money is set aside, or when that takes too long. Raises the errors of granting an allowance.
    """
    service, wallet_id, offer = payer.service, payer.wallet.wallet_id, bought.offer
    stored: list[IssuedPayment] = []
    async with granting(service, wallet_id):
        wallet, session = await admit_grant(payer.call, wallet_id)
        payer = replace(payer, wallet=wallet, session=session)
        expense = await payer.expense(offer, GRANT)
        destination = service.addresses.token_account(expense.payee.owner)
        if await payer.opens_accounts():
            expense.opens_account = await lacks_token_account(service, wallet_id, expense.payee.owner)
            expense.refusal = await unverified_refusal(expense) if expense.opens_account else None
        else:
            await require_account(expense, "payTo", NO_ACCOUNT)
        blockhash = await service.chain.blockhash(fresh=True)
        expires_at = (await service.chain.clock()).unix_timestamp + _SECONDS
        delegate, raw = Pubkey.default(), b""

        async def prepare(one: ExpenseRequest) -> None:
            nonlocal delegate, raw
            delegate, raw = await _transfer(one, destination, bought, blockhash.hash)

        def plan(one: ExpenseRequest) -> Plan:
            def store(conn: Connection, made: Attempt) -> None:
                more = {"lane": ALLOWANCE, "last_valid_block_height": blockhash.last_valid_block_height}
                issued = bought.issued(payer, made, raw, **more)
                insert_issued_payment(conn, issued)
                stored[:] = [issued]

            made = grant_plan(one, destination, delegate, expires_at, store)
            return made if offer.sponsored else replace(made, prepaid=TRANSFER)

        expense.prepare = prepare
        outcome = await submit_expense(expense, plan)
    if outcome.status == "failed":
        raise await late_refusal(service, payer.call.principal, payer.wallet, outcome)
    return stored[0], outcome


async def _transfer(
    expense: ExpenseRequest, destination: Pubkey, bought: PaidResourceTerms, blockhash: Hash
) -> tuple[Pubkey, bytes]:
    """Return a new delegate's address and the transfer that the delegate has signed.

    The delegate's key is discarded here. Without another fee payer, the service's fee payer signs as well.
    """
    service, offer, delegate = expense.service, bought.offer, Keypair()
    address = service.addresses.allowance(Pubkey.from_string(expense.wallet.vault), expense.wallet.allowance_counter)
    tokens = service.addresses.allowance_tokens(address)
    instructions = delegate_transfer(expense, delegate.pubkey(), tokens, destination, offer)
    if not offer.sponsored:
        ours = service.signers.fee_payer
        made = await sign_with_any(instructions, payer=ours, signers=[delegate], blockhash=blockhash)
        return delegate.pubkey(), made.raw
    payer = Pubkey.from_string(offer.fee_payer)
    return delegate.pubkey(), await sign_for(instructions, payer=payer, signers=[delegate], blockhash=blockhash)


async def allowance_for(service: Service, issued: IssuedPayment) -> AllowanceRecord | None:
    """Return the allowance that funds an issued payment, or None if the grant failed."""
    return await service.db.read(lambda conn: allowance_of_transaction(conn, issued.org, issued.tx_id))


async def conclude(service: Service, issued: IssuedPayment) -> AllowanceRecord | None:
    """Settle the allowance of an issued payment, so that its delegate can no longer pay. Return the allowance.

    Records the delegate's transfer if the delegate has paid. An allowance with a pending grant is left unchanged.
    Returns None if the grant failed.

    Raises ``chain_unavailable`` if the outcome of the settlement is unknown.
    """
    found = await allowance_for(service, issued)
    if found is None or found.status == PENDING:
        return found
    if found.status == OUTSTANDING:
        await end(service, Claim(service.db), found)
        found = await allowance_for(service, issued)
    if found is not None and found.status == SETTLED and found.spent and issued.signature is None:
        await _note_transfer(service, issued, found)
    return found


async def _note_transfer(service: Service, issued: IssuedPayment, found: AllowanceRecord) -> None:
    """Find the delegate's transfer among the allowance's transactions, and store its signature.

    The signature is not known beforehand, because a transaction is identified by its fee payer's signature, which the
    facilitator adds.
    """
    wanted = message_hash(transaction_of(issued.header))
    # Read all transactions after the grant, oldest first. Anyone can name the token account in a transaction, even
    # after the account is closed.
    history = await service.chain.history(found.tokens, found.signature)
    for entry in (one for one in history if not one.failed):
        [raw] = await service.chain.transactions([entry.signature])
        with suppress(UnreadableTransactionError, IncompleteTransactionError):
            if isinstance(raw, dict) and signed(raw).message_hash == wanted:
                await service.db.write(lambda conn: record_transfer(conn, issued.tx_id, entry.signature, entry.slot))  # noqa: B023 - awaited immediately
                return
