"""Results of tools: an outcome, a sentence that a model can act on, and the API's own fields."""

import json
from collections.abc import Iterable, Mapping

from mcp.types import CallToolResult, TextContent

from app.core.errors import CATALOGUE, violation_sentence
from app.mcp.operations import Json, Reply
from app.mcp.remedies import remedy

#: The meaning of each outcome for the caller.
OUTCOMES: Mapping[str, str] = {
    "done": "The call succeeded. `data` contains the result.",
    "pending": "A transaction is not confirmed yet, or an approval is undecided. Check its status before you act.",
    "refused": "The call was refused, and nothing was paid. Repeat it only once the cause in `message` is gone.",
    "invalid": "The arguments or credentials are wrong. This call has changed nothing.",
    "unavailable": "The service could not respond. This call has changed nothing and can be repeated.",
    "unknown": "The call may or may not have had an effect. Repeat it with the same `idempotency_key`, never another.",
}

#: The outcome and its sentence for each status of an approval.
_DECISIONS: Mapping[str, tuple[str, str]] = {
    "pending": ("pending", "No operator has decided yet. Check again later, and do not pay before that."),
    "approved": ("done", "An operator has approved the payment. Pay again now: same recipient, same amount."),
    "used": ("done", "The approved payment was made. The approval is used up."),
    "rejected": ("refused", "An operator has rejected the payment. Do not make it."),
    "expired": ("refused", "The approval has expired. Pay again to request a new one."),
}

_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}


def _object_or_null(**properties: tuple[Json, str]) -> Json:
    described = {name: {**kind, "description": meaning} for name, (kind, meaning) in properties.items()}
    return {"type": ["object", "null"], "properties": described}


_ERROR = _object_or_null(
    code=(_TEXT, "Error code."),
    message=(_TEXT, "The problem."),
    docs=(_TEXT, "The code's page."),
    request_id=(_TEXT, "For support."),
)
_REFUSAL = _object_or_null(
    rule=(_TEXT, "The rule."),
    limit=(_TEXT_OR_NULL, "Its limit."),
    attempted=(_TEXT_OR_NULL, "The value it would reach."),
    headroom=(_TEXT_OR_NULL, "The amount left."),
    retry_at=(_TEXT_OR_NULL, "When the payment would pass."),
    approval_id=(_TEXT_OR_NULL, "The requested approval."),
    open_allowances=({"type": "array", "items": _TEXT}, "Allowances whose money alone breaks it."),
)
_FIELDS: Mapping[str, tuple[Json, str]] = {
    "outcome": ({**_TEXT, "enum": list(OUTCOMES)}, "See the server's instructions."),
    "message": (_TEXT, "The result and the next step."),
    "idempotency_key": (_TEXT_OR_NULL, "The key of this call. Repeat the call with it to learn the outcome."),
    "repeated": ({"type": "boolean"}, "True for the stored result of an earlier call."),
    "first_called_at": (_TEXT_OR_NULL, "The time of the first call with this key."),
    "refusal": (_REFUSAL, "The refusing rule."),
    "error": (_ERROR, "The API's error."),
    "data": ({"type": ["object", "null"]}, "The API's response."),
}
#: Schema of every tool's result. `/openapi.json` describes `data`, the response of the tool's operation.
SCHEMA: Json = {**_object_or_null(**_FIELDS), "type": "object", "required": list(_FIELDS)}

#: Statuses after which it is unknown if this request, or an earlier request with its key, has had an effect.
_DOUBTFUL = frozenset({0, 408, 500, 502, 503, 504})
#: Codes of 409 errors that leave it unknown if an earlier request with the same idempotency key has had an effect.
_UNDECIDED = frozenset({"idempotency_in_progress", "restore_unacknowledged"})


def result(
    answer: Reply, data: Json | None, *, key: str | None, verdict: Json | None = None, sent: bool = True
) -> CallToolResult:
    """Return the result of a tool from the API's reply.

    ``verdict`` is a simulation of the refused payment. If ``sent`` is False, the reply answers an earlier query of the
    tool, and the tool's own request was not sent.
    """
    error = None if answer.good else answer.body.get("error")
    cause = _predicted(answer.body) if answer.good else error
    refusal = _refusal(cause or {}, verdict or answer.body)
    outcome = "refused" if answer.good and cause else _outcome(answer, changes=key is not None and sent)
    content = {
        "outcome": outcome,
        "message": " ".join(_sentences(outcome, answer, cause, refusal, key)),
        "idempotency_key": key,
        "repeated": answer.first_called_at is not None,
        "first_called_at": answer.first_called_at,
        "refusal": refusal,
        "error": error and {name: error[name] for name in _ERROR["properties"] if name in error},
        "data": data if answer.good else None,
    }
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(content, ensure_ascii=False))],
        structured_content=content,
        is_error=outcome not in {"done", "pending"},
    )


def invalid(message: str, *, key: str | None = None) -> CallToolResult:
    """Return the result for invalid arguments. No request was made with them."""
    return result(Reply(400, {"error": {"code": "invalid_request", "message": message}}), None, key=key)


def _predicted(body: Json) -> Json | None:
    """Return the error that a simulated or quoted payment would get, or None."""
    if body.get("allowed") is False:
        broken = next((rule for rule in body["rules"] if not rule["passed"]), None)
        if broken is not None:
            held = body.get("open_allowances", [])
            message = violation_sentence(broken)
            return {"code": "policy_violation", "message": message, "violation": broken, "open_allowances": held}
        code = body["error"] or "policy_violation"
        return {"code": code, "message": CATALOGUE[code].meaning}
    return None


def _outcome(answer: Reply, *, changes: bool) -> str:
    if answer.good:
        if "decided_at" in answer.body:
            return _DECISIONS[answer.body["status"]][0]
        # The response to a paid request has the payment's status inside its field `payment`.
        statuses = (answer.body.get("status"), (answer.body.get("payment") or {}).get("status"))
        if changes and statuses[1] == "failed":
            return "refused"
        return "pending" if changes and "pending" in statuses else "done"
    error = answer.body.get("error", {})
    if error.get("answered") is False:
        return "unknown"
    if answer.status in _DOUBTFUL or error.get("code") in _UNDECIDED:
        return "unknown" if changes else "unavailable"
    return "refused" if answer.status in {402, 422, 429} else "invalid"


def _refusal(error: Json, verdict: Json) -> Json | None:
    violation = error.get("violation")
    if violation is None:
        return None
    rules, level = verdict.get("rules", ()), violation.get("budget_id")
    ruled: Json = next((one for one in rules if (one["rule"], one["budget_id"]) == (violation["rule"], level)), {})
    return {
        "rule": violation["rule"],
        "budget_id": level,
        "limit": violation.get("limit"),
        "attempted": violation.get("attempted"),
        "headroom": ruled.get("headroom"),
        "retry_at": verdict.get("retry_at"),
        "approval_id": error.get("approval_id"),
        "open_allowances": error.get("open_allowances", []),
    }


def _sentences(outcome: str, answer: Reply, error: Json | None, refusal: Json | None, key: str | None) -> Iterable[str]:
    if answer.first_called_at is not None:
        yield f"The key was first used at {answer.first_called_at}. All calls with it take effect at most once."
    resource = answer.body.get("resource")
    nothing = (
        "was received earlier and is no longer stored" if answer.body.get("resource_expired") else "gave no response"
    )
    said = f"answered {resource['status']}" if resource else nothing
    if "decided_at" in answer.body:
        yield _DECISIONS[answer.body["status"]][1]
        return
    if answer.good and outcome == "refused" and error is None:
        yield f"The resource {said} and did not accept the payment: nothing was paid, and the money is back."
        yield "To try again, call the tool with a new `idempotency_key`."
        return
    if outcome in {"done", "pending"}:
        yield OUTCOMES[outcome]
        if "allowed" in answer.body:
            yield "The payment would pass." if answer.body["rules"] else "The URL asks for no payment."
            yield from answer.body["warnings"]
        if answer.body.get("payment") and not (resource and 200 <= resource["status"] < 300):
            yield f"A payment is signed, and the resource {said}. Do not pay again until you know the payment's status."
        return
    if refusal is not None:
        # The API's message also has a remedy, for clients of HTTP.
        yield violation_sentence(refusal)
        yield from _advice(refusal)
    elif error is not None:
        yield error["message"]
        yield from answer.body.get("warnings", ())
        if (advice := remedy(error["code"])) is not None:
            yield advice
    else:
        yield "The service did not respond."
    if answer.retry_after is not None:
        yield f"Wait {answer.retry_after} seconds first."
    if outcome == "unavailable" or (outcome == "unknown" and key is not None):
        yield OUTCOMES[outcome]
    if outcome == "unavailable" and key is not None:
        yield "Use the same `idempotency_key`: an earlier call with it may have had an effect."


def _advice(refusal: Json) -> Iterable[str]:
    if refusal["approval_id"] is not None:
        yield (
            f"It waits for an operator, or for as many people as the policy requires. Check {refusal['approval_id']} "
            "with `request_approval_status`. Once it is approved, make the same payment again."
        )
        if refusal["retry_at"] is not None:
            yield f"Without an approval, it would pass from {refusal['retry_at']} on."
        return
    if refusal["rule"] in {"require_co_sign", "new_recipient"} and refusal["retry_at"] is None:
        yield "An operator must approve it: a payment with the vault's session token requests the approval."
        return
    if refusal["headroom"] is not None:
        yield f"{refusal['headroom']} is left of this limit."
    if refusal["open_allowances"]:
        yield "Outstanding allowances hold money of this limit. Try again in a few minutes, once they are settled."
    elif refusal["retry_at"] is not None:
        yield f"The same payment would pass from {refusal['retry_at']} on, if nothing else is paid before then."
    else:
        yield "Waiting is not known to help. Ask an admin of the organisation to change the vault's policy or budget."
