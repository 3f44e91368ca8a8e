"""Signatures: changes that wait for the organisation's authority to sign them offline."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from solders.pubkey import Pubkey
from starlette.responses import Response

from app.access.auth import ADMINS
from app.api.signing import AwaitingSignature
from app.core.errors import NotFoundError, RequestError
from app.core.text import plain
from app.dashboard.pages import View, action, page
from app.dashboard.site import HEADERS
from app.remote_signer.facts import facts, unproved
from app.remote_signer.inspection import UnsafeTransactionError, inspect
from app.signatures import service as signatures
from app.signatures.models import SendSigned
from app.store.wallets import labels
from idl.codec import Codec

#: The names of clusters in the Wallet Standard, if they differ from their usual names.
_CHAINS: Mapping[str, str] = {"mainnet-beta": "solana:mainnet"}


@dataclass(frozen=True, slots=True)
class ShownTransaction:
    """A transaction with the facts that its bytes prove.

    If there are `warnings`, the page does not offer to sign in a browser wallet.
    """

    claimed: AwaitingSignature
    facts: list[str]
    warnings: list[str]

    @classmethod
    def of(cls, claimed: AwaitingSignature, codec: Codec) -> "ShownTransaction":
        """Inspect a transaction's bytes for the page."""
        try:
            found = inspect(base64.b64decode(claimed.transaction), Pubkey.from_string(claimed.signer), codec)
        except UnsafeTransactionError as error:
            return cls(claimed, [], [f"Do not sign it: {plain(str(error))}."])
        warnings = [f"Unproved owner of the token account {one}." for one, *_ in unproved(found)]
        return cls(claimed, [plain(line) for line in facts(found)], warnings)


@page("/signatures", roles=ADMINS)
async def show(view: View) -> Response:
    """Show the transactions awaiting a signature, oldest first."""
    waiting = (await signatures.list_all(view.service, view.principal)).data
    ids = {one.object for one in waiting if one.object is not None}
    cluster = view.service.identity.cluster
    return view.render(
        "signatures.html",
        waiting=[ShownTransaction.of(one, view.service.codec) for one in waiting],
        labels=await view.service.db.read(lambda conn: labels(conn, ids)) if ids else {},
        key_here=view.service.signers.authority is not None,
        chain=_CHAINS.get(cluster, f"solana:{cluster}"),
    )


@page("/signatures/{tx_id}/file", roles=ADMINS)
async def download(view: View) -> Response:
    """Return the input file for `agent-vault sign`."""
    waiting = (await signatures.list_all(view.service, view.principal)).data
    found = next((one for one in waiting if one.id == view.path("tx_id")), None)
    if found is None:
        raise NotFoundError("unsigned_transaction_not_found")
    named = {"Content-Disposition": f'attachment; filename="{found.id}.json"'}
    return Response(found.model_dump_json(), media_type="application/json", headers={**HEADERS, **named})


@action("/signatures", roles=ADMINS, back=show, step_up=True)
async def send(view: View) -> str:
    """Send a transaction that the authority signed offline or in a browser wallet."""
    body = view.body(SendSigned, transaction=_transaction(view.typed("transaction").strip()))
    await signatures.send(view.service, view.principal, view.claim(), body.transaction)
    return view.url("signatures", done="signed")


def _transaction(text: str) -> str:
    """Return the transaction in the output of `agent-vault sign`, or the text itself.

    Raises ``invalid_signature`` for a JSON object without a transaction.
    """
    if not text.startswith("{"):
        return text
    try:
        found = json.loads(text)["transaction"]
    except (ValueError, LookupError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise RequestError("invalid_signature", "transaction: must be a file written by `agent-vault sign`.")
    return found


@action("/signatures/{tx_id}/withdraw", roles=ADMINS, back=show, brakes=True)
async def withdraw(view: View) -> str:
    """Withdraw a transaction, so that it is never completed."""
    await signatures.withdraw(view.service, view.principal, view.claim(), view.path("tx_id"))
    return view.url("signatures", done="signature-withdrawn")
