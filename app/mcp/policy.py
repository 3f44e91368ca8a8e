"""A policy in plain words."""

from collections.abc import Iterator

from app.mcp.operations import Json


def in_words(wallet: Json, policy: Json) -> str:
    """Return the wallet's policy as a list of sentences in Markdown."""
    head = f"# {wallet['label']} ({wallet['wallet_id']})\n\nPolicy {policy['name']!r} ({policy['policy_id']}):\n"
    return head + "".join(f"\n- {one}" for one in _sentences(policy))


def _sentences(policy: Json) -> Iterator[str]:
    if policy["max_per_tx"] is not None:
        yield f"A single payment may be at most {policy['max_per_tx']} USDC."
    if policy["max_per_day"] is not None:
        yield f"In any 24 hours, at most {policy['max_per_day']} USDC may be paid."
    if policy["max_per_month"] is not None:
        yield f"In a calendar month (UTC), at most {policy['max_per_month']} USDC may be paid."
    if policy["velocity_cap"] is not None:
        yield f"In any hour, at most {policy['velocity_cap']} payments may be made."
    if policy["max_open_escrows"] is not None:
        yield f"At most {policy['max_open_escrows']} escrows may be open at a time."
    if policy["allow_allowances"]:
        yield "Allowances may be granted. The delegate of an allowance pays by a plain transfer."
    if policy["allowed_recipients"]:
        yield f"Only these recipients may be paid: {', '.join(policy['allowed_recipients'])}."
    if policy["blocked_categories"]:
        yield f"Recipients of these categories may not be paid: {', '.join(policy['blocked_categories'])}."
    if policy["require_co_sign"] is not None:
        yield f"A payment above {policy['require_co_sign']} USDC requires an operator's approval."
    if policy["new_recipient_cap"] is not None:
        yield f"An address gets at most {policy['new_recipient_cap']} USDC until 24 hours after its first payment."
    if policy["expiry"] is not None:
        yield f"After {policy['expiry']}, all payments are refused."
    yield "Escrows count as payments. Payments of zero are always refused."
