"""The error catalogue: the status, cause and remedy of each code. /docs/errors and OpenAPI are made from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """An error code: its HTTP status, its area of the API, its cause (`meaning`), and the remedy for a client."""

    code: str
    status: int
    area: str
    meaning: str
    remedy: str

    @property
    def retryable(self) -> bool:
        """True if the same request with the same idempotency key can succeed later without a change by the client."""
        waits = self.status in _PASSING and self.code not in {"sol_limit_reached", "authority_offline"}
        return waits or self.code == "idempotency_in_progress"


#: Statuses of errors with a temporary cause.
_PASSING = frozenset({408, 429, 500, 503})


# The formatter would spread each entry over seven lines.
# fmt: off
KINDS = (
    ErrorKind("invalid_request", 400, "Requests",
        "The request is malformed: not JSON, a missing or unknown field, a wrong type or value, or an invalid cursor.",
        "Read the message, which names the field. Field names are accepted in camelCase and in snake_case."),
    ErrorKind("not_found", 404, "Requests",
        "The path does not exist, or the organisation has no object with this id.",
        "Check the path and the id."),
    ErrorKind("method_not_allowed", 405, "Requests",
        "The path does not support this HTTP method.",
        "Use one of the methods in the `Allow` header."),
    ErrorKind("host_not_allowed", 403, "Requests",
        "The `Host` or `Origin` header does not name this service. Another site's page may have sent the request.",
        "Use the service's own address. If you operate the service, set that address with `AGENT_VAULT_PUBLIC_URL` and "
        "configure proxies to forward `Host`."),
    ErrorKind("request_too_large", 413, "Requests",
        "The request body is larger than the service accepts.",
        "Send a smaller body. The limit is 65,536 bytes unless the operator of the service has changed it."),
    ErrorKind("request_timeout", 408, "Requests",
        "The request body did not arrive in time.",
        "Send the request again with the same idempotency key."),
    ErrorKind("rate_limited", 429, "Requests",
        "Too many requests came with this API key, or from this address without a valid key. Or the organisation "
        "already runs its maximum of previews, exports, paid requests or test deliveries, or too many domains are "
        "being looked up, or too many payments, escrows or allowances of the wallet are waiting to be sent.",
        "Wait for the number of seconds in `Retry-After`. `RateLimit-Policy` gives the requests (`q`) allowed in any "
        "window of `w` seconds. `RateLimit` gives the requests that remain (`r`) and the seconds until one more is "
        "available (`t`)."),
    ErrorKind("internal_error", 500, "Requests",
        "The service failed unexpectedly. The response shows no details.",
        "Retry with the same idempotency key, and report the `request_id` to the operator of the service."),
    ErrorKind("authentication_failed", 401, "Authentication",
        "The API key is missing, malformed, unknown or revoked.",
        "Send `Authorization: Bearer <API key>`."),
    ErrorKind("insufficient_permissions", 403, "Authentication",
        "The API key is valid, but its role does not allow this request, or the key is bound to another wallet.",
        "Use a key with one of the roles that the operation requires."),
    ErrorKind("form_outdated", 403, "Authentication",
        "The form does not belong to this sign-in. It was opened before you signed in, or the browser sent no cookie. "
        "Reload the page.",
        "Open the page again from the dashboard and repeat your change."),
    ErrorKind("step_up_required", 403, "Authentication",
        "The change needs a confirmation of your identity that is not older than five minutes.",
        "Confirm your identity when the dashboard asks for it: with your passkey, your company's sign-in or, before "
        "the organisation has people, the admin key."),
    ErrorKind("key_not_found", 404, "Authentication",
        "The organisation has no API key with this id.",
        "List the keys with `GET /v1/keys`. The id begins with `key_`; it is not the key itself."),
    ErrorKind("key_not_active", 422, "Authentication",
        "The API key was already revoked, or it was rotated and cannot be rotated again.",
        "Rotate the key that replaced it, or create a new one with `POST /v1/keys`."),
    ErrorKind("last_admin_key", 422, "Authentication",
        "This is the organisation's last active admin key. Without it, the API could no longer manage the "
        "organisation's keys.",
        "Rotate the key with `POST /v1/keys/{key_id}/rotate`, or create another admin key first."),
    ErrorKind("session_token_expired", 401, "Authentication",
        "The session token is the wallet's current one, but it has expired.",
        "Issue a new token with `POST /v1/wallets/{wallet_id}/rotate-token`."),
    ErrorKind("session_token_invalid", 401, "Authentication",
        "The session token is required but missing, malformed, or not the wallet's current one.",
        "Send the token from the latest `rotate-token` response in the header `Session-Token`."),
    ErrorKind("x402_host_not_allowed", 422, "x402",
        "The wallet's policy does not allow paid requests to this host.",
        "Have an admin add the host to the list that the message names: `x402Hosts` or `allowedRecipients`. If the "
        "host asks to pay an unregistered address, check its registration. Or request another resource."),
    ErrorKind("x402_resource_unavailable", 422, "x402",
        "The resource has no public address, could not be reached, gave no valid response in time or refused the "
        "payment, or its facilitator lacks SOL to settle it. Nothing was paid.",
        "Check the URL and retry later."),
    ErrorKind("x402_invalid_terms", 422, "x402",
        "The resource answered 402, but its payment terms are not valid x402 or MPP terms. Nothing was paid.",
        "Report this to the resource's operator. The service supports versions 1 and 2 of x402, and MPP."),
    ErrorKind("x402_no_acceptable_offer", 422, "x402",
        "The resource does not accept USDC on this chain by the scheme `exact` of x402 or the method `solana` of MPP. "
        "Nothing was paid.",
        "Pay for the resource in another way, or use another resource."),
    ErrorKind("x402_price_too_high", 422, "x402",
        "The resource costs more than `maxAmount`. Nothing was paid.",
        "Raise `maxAmount` to the `price` in the error if the resource is worth it."),
    ErrorKind("x402_wallet_not_supported", 422, "x402",
        "The resource uses MPP, or its facilitator settles only plain transfers, not payments by a vault's program. "
        "Nothing was paid.",
        "Have an admin set `allowAllowances` in the wallet's policy, so that an allowance can pay. For a "
        "facilitator of x402 version 2, you can instead ask its operator to allow the program; the service tries it "
        "again after an hour."),
    ErrorKind("wallet_not_found", 404, "Wallets",
        "The organisation has no wallet with this id.",
        "Check the id, and check that the API key belongs to the wallet's organisation."),
    ErrorKind("wallet_frozen", 422, "Wallets",
        "The wallet is frozen; payments from it and new escrows to it are refused.",
        "Unfreeze the wallet with `PATCH /v1/wallets/{wallet_id}`, `status` = `active`. If its policy has expired, "
        "first attach another policy or extend the `expiry`."),
    ErrorKind("wallet_archived", 422, "Wallets",
        "The wallet is archived. It cannot pay, and it cannot be funded, changed or restored.",
        "Create a new wallet with another agent id."),
    ErrorKind("wallet_not_empty", 422, "Wallets",
        "The wallet cannot be archived, because it still holds USDC or has open escrows or allowances.",
        "Withdraw the balance, and wait until the wallet's escrows and allowances are settled."),
    ErrorKind("wallet_receives_escrows", 422, "Wallets",
        "Open escrows pay the wallet. Archiving would end the session that can complete or dispute them.",
        "Wait until these escrows are settled, or set `acceptIncomingEscrows`. An operator can then complete them. "
        "Otherwise, they are refunded at their deadline."),
    ErrorKind("wallet_insufficient_balance", 422, "Wallets",
        "The wallet holds less USDC than the payment, or than the payment and the outstanding issued ones together.",
        "Fund the wallet and send the payment again. An agent reads its balance with `GET /v1/wallets/{wallet_id}`. If "
        "outstanding issued payments use up the balance, you can also wait for their outcome."),
    ErrorKind("wallet_agent_id_conflict", 409, "Wallets",
        "The organisation already has, or once had, a wallet for this agent id.",
        "Use the existing wallet, or another agent id."),
    ErrorKind("policy_violation", 402, "Payments",
        "The wallet's policy or budget refuses this payment, escrow or allowance. No money has moved.",
        "The next step depends on the `rule` in `violation`. `max_per_tx`: pay at most the limit, or have an admin "
        "change the policy. Limits of an hour, day or month: send the payment again at the `retry_at` that `POST "
        "/v1/payments/simulate` returns, pay less if an amount is limited, or have an admin change the policy or "
        "budget. Recipient, category and expiry: have an admin change the policy. `require_co_sign` and "
        "`new_recipient`: send the payment again once an operator has approved the `approval_id` in the error. Without "
        "it, send the payment with the session token, in the header `Session-Token` or as the client's `session`. "
        "`tx_id` names the refused row, `blocked` or `failed`."),
    ErrorKind("approval_not_found", 404, "Payments",
        "The organisation has no approval with this id.",
        "List the approvals with `GET /v1/approvals`."),
    ErrorKind("approval_not_pending", 422, "Payments",
        "The approval can no longer be decided, because it was rejected or used, or has expired.",
        "Send the payment again. If `require_co_sign` refuses it, the refusal requests a new approval."),
    ErrorKind("approval_outdated", 422, "Payments",
        "The wallet's policy was changed or replaced after the approval was requested.",
        "Send the payment again. If `require_co_sign` refuses it, the refusal requests a new approval."),
    ErrorKind("invalid_recipient", 400, "Payments",
        "The recipient is not a chain address, a wallet, or a domain that resolves to an address.",
        "Pass the owner's address (not a token account), a wallet id, or a domain that publishes its address. The "
        "paying wallet itself cannot be paid, and a vault of another organisation cannot receive escrows. The message "
        "names any other cause."),
    ErrorKind("recipient_unverified", 422, "Payments",
        "The address has no known owner. No private key belongs to it, and it has neither an account nor a token "
        "account.",
        "Compare the address with its source, because it may lack a character. If it is correct, for example the "
        "address of a multisig vault that never held SOL, repeat the request with `allowUnverifiedRecipient` = `true`. "
        "For an agent's key, this works only if the policy lists the address in `allowedRecipients`."),
    ErrorKind("invalid_amount", 400, "Payments",
        "The amount is not a decimal string above zero with at most 6 decimals and below 2^64 micro-USDC.",
        'Send amounts as strings, as in `"amount": "12.50"`. If the message says that the amount is too large, send a '
        "smaller one."),
    ErrorKind("idempotency_conflict", 409, "Payments",
        "The idempotency key was already used for a request with other parameters.",
        "Use a new key for a new request. To get the first response again, repeat exactly the same request. A response "
        "with a secret is replayed only to the API key that made the request. If that API key is gone, check what the "
        "first request created before you create another."),
    ErrorKind("idempotency_in_progress", 409, "Payments",
        "A request with this idempotency key is still running, or its outcome is not known yet.",
        "Repeat the same request a little later. The message tells you if the cause is a concurrent change of the same "
        "object by another request."),
    ErrorKind("restore_unacknowledged", 409, "Payments",
        "The service was restored from a backup within the last 24 hours, or its database lost commits. It may have "
        "carried out this request before and lost the record of it. Nothing was sent now.",
        "Check in `GET /v1/transactions` if the money has already moved. If it has not, send the request again with "
        "`afterRestore` = `true`. An admin can end this check early under Developers in the dashboard, and the "
        "service's operator with `agent-vault restore --gap-checked`."),
    ErrorKind("transaction_not_found", 404, "Payments",
        "The organisation has no transaction with this id.",
        "Check the id."),
    ErrorKind("export_not_found", 404, "Exports",
        "The organisation has no export with this id, or its file was deleted.",
        "Check the id. A file is kept until `expires_at`. Request a new export with `POST /v1/transactions/export`."),
    ErrorKind("download_link_invalid", 403, "Exports",
        "The link was not issued by this service, or it has expired.",
        "Get a new `download_url` with `GET /v1/transactions/exports/{export_id}`."),
    ErrorKind("range_not_satisfiable", 416, "Exports",
        "The `Range` header is malformed, or the file does not have that range.",
        "Request a range within the size in the `Content-Range` header. If the response lacks this header, correct the "
        "syntax of `Range`, or request the whole file without it."),
    ErrorKind("too_many_exports", 422, "Exports",
        "The organisation, or the API key, has reached its limit of unfinished or unexpired exports.",
        "Wait until an export is ready. If the response has `Retry-After`, wait for that number of seconds instead. "
        "The number of transactions in all unexpired exports is limited too: export shorter periods."),
    ErrorKind("transaction_failed", 422, "Payments",
        "The chain rejected the transaction, or it expired before it landed. Nothing was moved.",
        "Read the message for the cause, then send the request again."),
    ErrorKind("sol_limit_reached", 429, "Payments",
        "The wallet or its organisation has used up its SOL for fees and rent: the sum of the UTC day, or the rent in "
        "open escrows and allowances. Nothing was sent.",
        "Wait until `retry_at`. Withdrawals, freezes and settlements still work. An admin can raise the organisation's "
        "own limits, up to the limits of the service."),
    ErrorKind("recipient_not_found", 404, "Payments",
        "No recipient is registered under this address or domain.",
        "Register the recipient with `PUT /v1/recipients/{recipient}`."),
    ErrorKind("policy_not_found", 404, "Policies",
        "The organisation has no policy with this id.",
        "List the policies with `GET /v1/policies`."),
    ErrorKind("approvals_missing", 422, "Policies",
        "The change weakens the policy's `approvals`, and too few people have requested it.",
        "Have other people request this change in the dashboard within a day. If fewer people remain than the policy "
        "requires, attach another policy with `?sign=offline`."),
    ErrorKind("policy_immutable", 422, "Policies",
        "Preset policies cannot be changed.",
        "Copy the preset with `POST /v1/policies/{policy_id}/clone` and change the copy."),
    ErrorKind("policy_in_use", 422, "Policies",
        "Wallets are still attached to the policy.",
        "Attach these wallets to another policy first."),
    ErrorKind("budget_not_found", 404, "Policies",
        "The organisation has no budget with this id.",
        "List the budgets with `GET /v1/budgets`."),
    ErrorKind("budget_in_use", 422, "Policies",
        "Wallets are still in the budget, or other budgets are part of it.",
        "Take its wallets out with `PATCH /v1/wallets/{wallet_id}` and `budgetId` = null, and delete its parts first."),
    ErrorKind("budget_nested", 422, "Policies",
        "The parent is itself part of another budget.",
        "Name a budget whose `parent_id` is null."),
    ErrorKind("budget_frozen", 422, "Policies",
        "The budget or its parent is frozen, so its wallets cannot leave it.",
        "Have an admin unfreeze the budget: `PATCH /v1/budgets/{budget_id}` with `status` = `active`."),
    ErrorKind("version_conflict", 409, "Policies",
        "The version does not match `If-Match`, other requests keep changing the policy or budget concurrently, or the "
        "object has changed since a transaction for offline signing was created.",
        "Read the object again, check that your change still makes sense, and send it with the new `ETag`. If you "
        "sent a transaction signed elsewhere, request the change again and sign the new transaction."),
    ErrorKind("org_insufficient_balance", 422, "Funding",
        "The organisation's reserve holds less USDC than the requested amount.",
        "Deposit USDC into the reserve."),
    ErrorKind("org_paused", 422, "Funding",
        "The organisation is paused; payments and funding are refused. Withdrawals remain possible.",
        "Have an admin end the pause with `POST /v1/organization/pause` and `paused` = `false`."),
    ErrorKind("operator_limit_exceeded", 422, "Funding",
        "The funding exceeds the amount that the operator may move out of the reserve in 24 hours.",
        "Wait, or have the organisation's authority raise the operator's daily limit."),
    ErrorKind("withdrawal_exceeds_balance", 422, "Funding",
        "The withdrawal is larger than the balance, or the balance is zero.",
        'Withdraw at most the balance; `"amount": "all"` withdraws everything if there is anything.'),
    ErrorKind("escrow_not_found", 404, "Escrow",
        "The organisation has no escrow with this id.",
        "List the escrows with `GET /v1/payments/a2a`."),
    ErrorKind("escrow_expired", 422, "Escrow",
        "The escrow's deadline has passed. Its money goes back to the paying wallet.",
        "Create a new escrow, with a longer `timeoutSeconds` if the task needs it."),
    ErrorKind("escrow_already_settled", 422, "Escrow",
        "The escrow was already released, refunded or split, or it is disputed and waits for the arbiter.",
        "Read the escrow's `status` with `GET /v1/payments/a2a/{escrow_id}`."),
    ErrorKind("dispute_raised_before", 422, "Escrow",
        "This side has already disputed the escrow. Each side may raise one dispute; a withdrawn dispute counts.",
        "Complete the escrow or let its deadline pass. The other side can still raise a dispute if it has not yet."),
    ErrorKind("escrow_not_disputed", 422, "Escrow",
        "The escrow is not disputed, so there is no dispute to decide or withdraw.",
        "A party can raise a dispute before the deadline with `POST /v1/payments/a2a/{escrow_id}/dispute`."),
    ErrorKind("too_many_escrows", 422, "Escrow",
        "The wallet has reached its limit of open escrows: its policy's `maxOpenEscrows`, or 64 without one.",
        "Wait until an escrow is settled, or have an admin raise `maxOpenEscrows`, up to 64."),
    ErrorKind("invalid_proof", 422, "Escrow",
        "The proof is malformed, of a kind that the escrow does not accept, for another escrow or output, or not "
        "signed by the expected key.",
        "Read the message for the cause. A signed proof covers its kind, the cluster's genesis hash, the program's "
        "address, this escrow's address, its task's hash and the output's hash."),
    ErrorKind("allowance_not_found", 404, "Allowances",
        "The wallet has no allowance with this id.",
        "Check the ids of wallet and allowance. `GET /v1/wallets/{wallet_id}/allowances` lists a wallet's allowances."),
    ErrorKind("allowances_not_allowed", 422, "Allowances",
        "The wallet's policy does not permit allowances. Nothing was set aside.",
        "Have an admin set `allowAllowances` in the policy, or attach a policy that permits them."),
    ErrorKind("too_many_allowances", 422, "Allowances",
        "The wallet has four outstanding allowances, or has reached its maximum number of grants in 24 hours.",
        "Settle allowances that are no longer needed. The service's operator sets the daily number with "
        "`AGENT_VAULT_ALLOWANCES_PER_DAY`."),
    ErrorKind("webhook_not_found", 404, "Webhooks",
        "The organisation has no webhook with this id.",
        "List the webhooks with `GET /v1/webhooks`."),
    ErrorKind("delivery_not_found", 404, "Webhooks",
        "The webhook has no delivery with this id. Deliveries are deleted after 90 days.",
        "List the deliveries with `GET /v1/webhooks/{webhook_id}/deliveries`."),
    ErrorKind("too_many_webhooks", 422, "Webhooks",
        "The organisation has reached its limit of webhooks.",
        "Delete a webhook that is no longer needed, or change its URL and events."),
    ErrorKind("unsigned_transaction_not_found", 404, "Signing elsewhere",
        "The organisation has no unsigned transaction with this id or message.",
        "List the waiting transactions with `GET /v1/signed-transactions`. Send the signed bytes unchanged."),
    ErrorKind("invalid_signature", 400, "Signing elsewhere",
        "The bytes are not a transaction, or lack a valid signature by the required key.",
        "Sign with `agent-vault sign`, using the key of the address in `signer`."),
    ErrorKind("unsigned_transaction_void", 422, "Signing elsewhere",
        "The transaction can no longer be sent: it was withdrawn, is older than 7 days, its nonce was advanced, or a "
        "signer has changed. A transaction that has landed can no longer be withdrawn.",
        "Request the change again with `?sign=offline`."),
    ErrorKind("too_many_unsigned_transactions", 422, "Signing elsewhere",
        "The organisation has reached its limit of transactions that wait for a signature.",
        "Sign or withdraw a waiting transaction; list them with `GET /v1/signed-transactions`."),
    ErrorKind("test_clock_refused", 422, "Testing",
        "The test clock needs the embedded chain, run by this service with its database in the data folder and with a "
        "single organisation. It can be at most 400 days ahead.",
        "Start a service without `--rpc-url` for tests. If the message names a total, stop the service and run "
        "`agent-vault clock reset`."),
    ErrorKind("chain_unavailable", 503, "Service",
        "The chain does not answer, or the service cannot tell the chain's current state. "
        "Nothing is lost: signed payments are recovered later.",
        "Retry with the same idempotency key."),
    ErrorKind("fee_payer_insufficient", 503, "Service",
        "The service's fee payer has too little SOL. Its last SOL is kept for freezes and pauses. Nothing was sent.",
        "Retry in a minute with the same idempotency key. The operator of the service must send SOL to the fee payer."),
    ErrorKind("signer_unavailable", 503, "Service",
        "The hardware token with the operator's, authority's, arbiter's or fee payer's key cannot sign now. The "
        "transaction that needs its signature was not sent.",
        "Retry with the same idempotency key once the token works again. A freeze or pause already stops payments in "
        "this service, and is signed as soon as the token works."),
    ErrorKind("sign_in_unavailable", 503, "Service",
        "The company's sign-in does not answer, or its response violates OpenID Connect. Nothing has changed.",
        "Try again later, or sign in by passkey. The log of the service and the audit log name the reason."),
    ErrorKind("restore_catching_up", 503, "Service",
        "The service was restored from a backup, or its database has failed over, and it is still reading the later "
        "transactions from the chain. Until it has caught up, it moves no money under an unknown idempotency key.",
        "Retry with the same idempotency key a little later."),
    ErrorKind("storage_unavailable", 503, "Service",
        "The service cannot write or read its database, for example because the database is restarting or the disk is "
        "full. Transactions that were already sent are recovered later.",
        "Retry with the same idempotency key."),
    ErrorKind("not_ready", 503, "Service",
        "The service is not ready, because at least one of its parts does not work. `reasons` names these parts: "
        "`chain`, `database`, `disk` or `indexer`.",
        "Wait, or use another node. `chain` means that the chain does not answer, `database` that the database cannot "
        "be written to, `disk` that the data folder's disk is almost full, and `indexer` that this node's indexer is "
        "behind the chain."),
    ErrorKind("authority_offline", 503, "Service",
        "The request needs the signature of the authority or the arbiter, and the service runs without that key. The "
        "change must be signed elsewhere.",
        "Repeat the request with `?sign=offline` and sign its transaction with `agent-vault sign`. Decide disputes "
        "with the arbiter's key, outside this service."),
)
# fmt: on
