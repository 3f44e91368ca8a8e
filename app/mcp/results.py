"""Results of tools: an outcome, a sentence that a model can act on, and the API's own fields."""

import json
from collections.abc import Iterable, Mapping

from mcp.types import CallToolResult, TextContent

from app.mcp.operations import Json, Reply
from app.mcp.remedies import remedy

#: The meaning of each outcome for the caller.
OUTCOMES: Mapping[str, str] = {
    "done": "The call succeeded. `data` contains the result.",
    "pending": "The transaction was sent, but is not confirmed yet. Check its status before you act on it.",
    "refused": "The call was refused and has changed nothing. Repeat it only once the cause in `message` is gone.",
    "invalid": "The arguments or credentials are wrong. This call has changed nothing.",
    "unavailable": "The service could not respond. This call has changed nothing and can be repeated.",
    "unknown": "The call may or may not have had an effect. Repeat it with the same `idempotency_key`, never another.",
}

_STRING_OR_NULL: Json = {"type": ["string", "null"]}

#: Schemas of the fields that every tool returns in addition to its own `data`.
_AROUND: Mapping[str, Json] = {
    "outcome": {
        "type": "string",
        "enum": list(OUTCOMES),
        "description": " ".join(f"`{name}`: {meaning}" for name, meaning in OUTCOMES.items()),
    },
    "message": {"type": "string", "description": "The result and the next step, in words."},
    "idempotency_key": {
        **_STRING_OR_NULL,
        "description": "Repeat the call with this key to learn its outcome. Null if the call had no valid key.",
    },
    "repeated": {
        "type": "boolean",
        "description": "True if an earlier call used this key. All calls with the same key share one outcome.",
    },
    "first_called_at": {
        **_STRING_OR_NULL,
        "description": "Time of the first call with this key (ISO 8601, UTC). Null unless `repeated` is true.",
    },
    "refusal": {
        "description": "The rule of the policy or budget that refuses the payment. Null if none does.",
        "anyOf": [{"$ref": "#/$defs/Refusal"}, {"type": "null"}],
    },
    "error": {
        "description": "The API's error. Null if there was none.",
        "anyOf": [{"$ref": "#/$defs/Error"}, {"type": "null"}],
    },
}

_DEFINITIONS: Mapping[str, Json] = {
    "Refusal": {
        "type": "object",
        "required": ["rule", "limit", "attempted", "headroom", "retry_at", "approval_id"],
        "properties": {
            "rule": {"type": "string", "description": "The rule's name."},
            "limit": {**_STRING_OR_NULL, "description": "The limit set by the rule."},
            "attempted": {**_STRING_OR_NULL, "description": "The value that the payment would have reached."},
            "headroom": {**_STRING_OR_NULL, "description": "The amount left of the limit. Null if none is known."},
            "retry_at": {
                **_STRING_OR_NULL,
                "description": "Time when the same payment would pass. Null if no such time is known.",
            },
            "approval_id": {
                **_STRING_OR_NULL,
                "description": "The id of the request for an operator's approval. Pay again once it is approved. "
                "Null if there is no such request.",
            },
        },
    },
    "Error": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string", "description": "The error's code, as in the API's catalogue."},
            "message": {"type": "string", "description": "The API's message. It names the field if one is wrong."},
            "docs": {"type": "string", "description": "The documentation page of the code."},
            "request_id": {"type": "string", "description": "Quote this id to the operator of the service."},
        },
    },
}

#: Statuses that do not tell if this request, or an earlier one with its key, has had an effect.
_DOUBTFUL = frozenset({0, 408, 500, 502, 503, 504})
#: Conflicts that leave the same doubt: an earlier request with the key may have had an effect.
_UNDECIDED = frozenset({"idempotency_in_progress", "restore_unacknowledged"})


def schema(data: Json, definitions: Json) -> Json:
    """Return the schema of a tool's result around the schema of its ``data``."""
    described = {
        "description": "The API's response. Null unless the request succeeded.",
        "anyOf": [data, {"type": "null"}],
    }
    return {
        "type": "object",
        "required": [*_AROUND, "data"],
        "properties": {**_AROUND, "data": described},
        "$defs": {**_DEFINITIONS, **definitions},
    }


def result(
    answer: Reply, data: Json | None, *, key: str | None, verdict: Json | None = None, sent: bool = True
) -> CallToolResult:
    """Return the result of a tool from the API's reply.

    ``verdict`` is a simulation of the refused payment. If ``sent`` is False, the reply answers an earlier query of the
    tool, and the tool's own request was not sent.
    """
    error = answer.body.get("error") if not answer.good else None
    refusal = _refusal(error or {}, verdict)
    outcome = _outcome(answer, changes=key is not None and sent)
    content = {
        "outcome": outcome,
        "message": " ".join(_sentences(outcome, answer, error, refusal, key)),
        "idempotency_key": key,
        "repeated": answer.first_called_at is not None,
        "first_called_at": answer.first_called_at,
        "refusal": refusal,
        "error": error and {name: error[name] for name in _DEFINITIONS["Error"]["properties"] if name in error},
        "data": data if answer.good else None,
    }
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(content, ensure_ascii=False))],
        structured_content=content,
        is_error=outcome not in {"done", "pending"},
    )


def invalid(message: str, *, key: str | None = None) -> CallToolResult:
    """Return the result for arguments that cannot be made into a request."""
    return result(Reply(400, {"error": {"code": "invalid_request", "message": message}}), None, key=key)


def _outcome(answer: Reply, *, changes: bool) -> str:
    if answer.good:
        # The response to a paid request has the payment's status inside its field `payment`.
        statuses = (answer.body.get("status"), (answer.body.get("payment") or {}).get("status"))
        if changes and statuses[1] == "failed":
            return "refused"
        return "pending" if changes and "pending" in statuses else "done"
    if answer.status in _DOUBTFUL or answer.body.get("error", {}).get("code") in _UNDECIDED:
        return "unknown" if changes else "unavailable"
    return "refused" if answer.status in {402, 422, 429} else "invalid"


def _refusal(error: Json, verdict: Json | None) -> Json | None:
    violation = error.get("violation")
    if violation is None:
        return None
    ruled: Json = next((one for one in (verdict or {}).get("rules", ()) if one["rule"] == violation["rule"]), {})
    return {
        "rule": violation["rule"],
        "limit": violation.get("limit"),
        "attempted": violation.get("attempted"),
        "headroom": ruled.get("headroom"),
        "retry_at": (verdict or {}).get("retry_at"),
        "approval_id": error.get("approval_id"),
    }


def _sentences(outcome: str, answer: Reply, error: Json | None, refusal: Json | None, key: str | None) -> Iterable[str]:
    if answer.first_called_at is not None:
        yield f"The key was first used at {answer.first_called_at}. All calls with it share this one outcome."
    resource = answer.body.get("resource")
    said = f"answered {resource['status']}" if resource else "did not answer"
    if answer.good and outcome == "refused":
        yield f"The resource {said} and did not accept the payment: nothing was paid, and the money is back."
        yield "To try again, call the tool with a new `idempotency_key`."
        return
    if outcome in {"done", "pending"}:
        yield OUTCOMES[outcome]
        if answer.body.get("payment") and not (resource and 200 <= resource["status"] < 300):
            yield f"The resource was paid for and {said}. Do not pay for it again until you know the payment's status."
        return
    yield error["message"] if error else "The service did not respond."
    if refusal is not None:
        yield from _advice(refusal)
    elif error is not None and (advice := remedy(error["code"])) is not None:
        yield advice
    if answer.retry_after is not None:
        yield f"Wait {answer.retry_after} seconds first."
    if outcome in {"unknown", "unavailable"}:
        yield OUTCOMES[outcome]
    if outcome == "unavailable" and key is not None:
        yield "Use the same `idempotency_key`: an earlier call with it may have had an effect."


def _advice(refusal: Json) -> Iterable[str]:
    if refusal["headroom"] is not None:
        yield f"{refusal['headroom']} is left of this limit."
    if refusal["retry_at"] is not None:
        yield f"The same payment would pass from {refusal['retry_at']} on, if nothing else is paid before then."
    if refusal["approval_id"] is not None:
        yield (
            f"An operator can approve the payment. Check the status of {refusal['approval_id']}. Once it is approved, "
            "make the same payment again with a new idempotency key."
        )
    elif refusal["retry_at"] is None:
        yield "Waiting is not known to help. An operator of the vault may have to change its policy or budget."
