"""Checks of our own for schemathesis, and limits on what it sends; it runs in a separate process.

SCHEMATHESIS_HOOKS names this module. OWN_KEY is the id of the API key that the run uses.
"""

import os
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

import schemathesis

from app.core.errors import CATALOGUE

_MEMBERS = frozenset({"code", "message", "docs", "request_id"})

#: Parts of messages about what no schema can express: calendars, two parameters together, earlier requests, people.
_BEYOND_SCHEMAS = (
    "cursor: ",
    "from: ",
    "to: ",
    "expiry: ",
    "url: ",
    "delegate: must be a chain address",
    "ownerOrg: ",
    "The change needs no signature by the authority",
    "headers: ",
    "body: must be base64",
    "does not fit into one transaction",
    "must be an e-mail address",
    "walletId: must be the paying or the receiving wallet",
    "bom: must be false",
    "allowedAddresses",
    "expiresAt: ",
    "the organisation requires both for new keys",
    "allocations: must name each wallet once",
    "query: type and event are the same",
    "a policy signed elsewhere must be created without a list",
    "Idempotency-Key: ",
    # The patterns omit the characters that some regular expressions cannot express.
    "must not contain control, zero-width, invisible or direction-changing characters",
    # Its pattern is documented, but one of the phases ignores the patterns of headers.
    "If-Match: ",
    "The idempotency keys in the body and in the header differ",
    "approvals.required: must be at most",
    "requireCoSign: must be at most approvals.above",
)

_used: Counter[str] = Counter()


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case[Any], _kwargs: dict[str, Any]) -> None:
    """Keep the run from blocking itself with one idempotency key for everything, or by revoking its own API key.

    Each idempotency key is sent twice, for replays and conflicts, and then left out. Other API keys may be revoked or
    rotated.
    """
    parameters = case.path_parameters or {}
    if parameters.get("key_id") == os.environ["OWN_KEY"]:
        parameters["key_id"] = "key_another"
    _leave_out(case.headers, "Idempotency-Key")
    _leave_out(case.body, "idempotencyKey")


def _leave_out(holder: Any, name: str) -> None:
    key = holder.get(name) if isinstance(holder, MutableMapping) else None
    if isinstance(key, str) and 0 < len(key) <= 255:
        _used[key] += 1
        if _used[key] > 2:
            del holder[name]


@schemathesis.check
def errors_fit_the_envelope(
    _context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """Every error has the envelope, and a code that its operation names or that says that there is no operation."""
    if response.status_code == 200:
        return
    body = response.json()
    assert set(body) == {"error"}, f"no envelope: {body}"
    error = body["error"]
    assert set(error) >= _MEMBERS, f"members are missing: {error}"
    kind = CATALOGUE.get(error["code"])
    assert kind is not None, f"unknown code: {error['code']}"
    assert kind.status == response.status_code, f"{error['code']} does not go with {response.status_code}"
    assert error["docs"].endswith(f"/docs/errors/{kind.code}"), error["docs"]
    assert [error["request_id"]] == response.headers["request-id"], "two different request ids"
    if kind.code not in ("not_found", "method_not_allowed"):
        described = case.operation.definition.raw["responses"][str(response.status_code)]["description"]
        assert kind.code in described.split(", "), f"{kind.code} is not documented for {case.operation.label}"


@schemathesis.check
def documented_requests_are_well_formed(
    _context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """A request that fits the document is refused as malformed only for what no schema can express."""
    if response.status_code != 400 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    error = response.json()["error"]
    if error["code"] == "invalid_request":
        message = error["message"]
        assert any(part in message for part in _BEYOND_SCHEMAS), f"refused although documented: {message}"
