"""Does an agent's job with the `generated_client` of openapi-python-client, and prints the results as one JSON object.

The environment variables BASE_URL, API_KEY and PAYEE name the service, the API key and whom to pay.
"""

import json
import os
from datetime import UTC, datetime
from typing import Any, TypeVar

from generated_client import AuthenticatedClient  # type: ignore[import-not-found]
from generated_client.api.payments import create_payment  # type: ignore[import-not-found]
from generated_client.api.policies import create_policy, update_policy  # type: ignore[import-not-found]
from generated_client.api.transactions import get_transaction, list_transactions  # type: ignore[import-not-found]
from generated_client.api.wallets import create_wallet, fund_wallet, rotate_session_token, update_wallet  # type: ignore[import-not-found]
from generated_client.models import (  # type: ignore[import-not-found]
    CreatePayment,
    CreatePolicy,
    CreateWallet,
    ErrorEnvelope,
    Funded,
    FundWallet,
    Payment,
    PaymentStatus,
    Policy,
    PolicyViolationEnvelope,
    RotateToken,
    SessionToken,
    Transaction,
    TransactionPage,
    TransactionType,
    UpdatePolicy,
    UpdateWallet,
    UpdateWalletStatus,
    Wallet,
    WalletDetail,
    WalletDetailStatus,
)

T = TypeVar("T")


def expect(kind: type[T], answer: object) -> T:
    """Return the answer if it is of this type: a client branches on types, not on status codes."""
    if not isinstance(answer, kind):
        raise TypeError(f"expected {kind.__name__}, got {answer}")
    return answer


def main() -> None:
    """Do the job."""
    client = AuthenticatedClient(base_url=os.environ["BASE_URL"], token=os.environ["API_KEY"])
    payee = os.environ["PAYEE"]

    made = create_policy.sync_detailed(client=client, body=CreatePolicy(name="Shopping", max_per_tx="4.00"))
    etag, policy = made.headers["ETag"], expect(Policy, made.parsed)
    change = UpdatePolicy(max_per_tx="5.00")
    changed = expect(Policy, update_policy.sync(policy.policy_id, client=client, body=change, if_match=etag))
    outdated = expect(ErrorEnvelope, update_policy.sync(policy.policy_id, client=client, body=change, if_match=etag))

    order = CreateWallet(agent_id="shopper", label="Shopper", policy_id=policy.policy_id, tags=["shop"])
    wallet = expect(Wallet, create_wallet.sync(client=client, body=order))
    funding = FundWallet(amount="50", currency="USDC")
    funded = expect(Funded, fund_wallet.sync(wallet.wallet_id, client=client, body=funding))
    lifetime = RotateToken(ttl_seconds=600)
    session = expect(SessionToken, rotate_session_token.sync(wallet.wallet_id, client=client, body=lifetime))

    def pay(amount: str, key: str) -> Any:
        payment = CreatePayment(wallet_id=wallet.wallet_id, to=payee, amount=amount, currency="USDC", memo="Order 1024")
        return create_payment.sync_detailed(
            client=client, body=payment, session_token=session.session_token, idempotency_key=key
        )

    first = pay("4.50", "order-1024")
    paid = expect(Payment, first.parsed)
    again = pay("4.50", "order-1024")
    refused = expect(PolicyViolationEnvelope, pay("6.00", "order-1025").parsed).error

    seen = expect(Transaction, get_transaction.sync(paid.tx_id, client=client))
    page = expect(TransactionPage, list_transactions.sync(client=client, wallet_id=wallet.wallet_id, limit=10))

    freeze = UpdateWallet(status=UpdateWalletStatus.FROZEN)
    frozen = expect(WalletDetail, update_wallet.sync(wallet.wallet_id, client=client, body=freeze))
    stopped = expect(ErrorEnvelope, pay("1.00", "order-1026").parsed).error

    print(
        json.dumps(
            {
                "confirmed": paid.status == PaymentStatus.CONFIRMED,
                "limits": [policy.max_per_tx, changed.max_per_tx],
                "outdated": outdated.error.code,
                "funded": funded.usdc_balance,
                "paid": paid.to_dict(),
                "age": (datetime.now(UTC) - paid.timestamp).total_seconds(),
                "replayed": [one.headers.get("Idempotent-Replayed") for one in (first, again)],
                "same": again.parsed == paid,
                "request_id": first.headers["Request-Id"],
                "refused": [refused.code, refused.violation.to_dict(), refused.wallet_id, refused.policy_id],
                "seen": [seen.tx_id, seen.type_ == TransactionType.PAYMENT, seen.policy_id],
                "listed": [[one.type_.value, one.status.value, one.amount] for one in page.data],
                "frozen": frozen.status == WalletDetailStatus.FROZEN,
                "stopped": [stopped.code, stopped.docs],
                "wallet": wallet.to_dict(),
            }
        )
    )


if __name__ == "__main__":
    main()
