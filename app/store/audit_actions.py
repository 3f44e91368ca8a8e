"""The actions that the audit log records, and the meaning of each."""

from collections.abc import Mapping

ACTIONS: Mapping[str, str] = {
    "access.refused": "The API refused a request for lack of a permission, or the dashboard refused one with status "
    "401, 403 or 404. `details` has `operation` and `count`, for repeats also `since` and `networks`, and for an "
    "OpenID Connect sign-in the `reason`. If "
    "the organisation is unknown, the entry is in the service's log.",
    "alerts.set": "The alert rules of the organisation or of a wallet were replaced.",
    "allowance.grant": "The grant of an allowance was requested. `details` has the `amount` and the `delegate`.",
    "approval.approve": "An operator or admin approved a payment, escrow or allowance above the co-sign threshold.",
    "approval.reject": "A request for approval was rejected, or the withdrawal of an approval was requested.",
    "audit.checkpoint": "Old entries were deleted. `details` has `number` and `hash` of the last deleted entry.",
    "authentication.failed": "Within a minute, `count` requests had no valid API key or, in the dashboard, no session. "
    "Only in the service's log.",
    "backup.gap_checked": "After a restore or lost commits, the gap was declared checked, so that "
    "payments no longer need `afterRestore`.",
    "backup.restore": "The service was restored. `details` has `backup_of` (the backup's time), `gap_checked`, and "
    "`verified_by` (`mac`, `passphrase`, `fingerprint` or null).",
    "brake.refused": "A request for a freeze or pause was refused, so the freeze or pause is not in force. "
    "`details` has `kind` and `reason`.",
    "budget.create": "The creation of a budget was requested.",
    "budget.delete": "The deletion of a budget was requested.",
    "budget.freeze": "A freeze of a budget was requested.",
    "budget.unfreeze": "An unfreeze of a budget was requested.",
    "budget.update": "A change to a budget was requested. `details` has the requested `fields` and the `changes` of "
    "limits with `from` and `to`.",
    "clock.advance": "The embedded chain's test clock was advanced. `details` has `seconds` and the total, "
    "`ahead_seconds`.",
    "clock.reset": "The service was returned to its state before the first advance of the test clock.",
    "escrow.resolve": "The arbiter's decision on a disputed escrow was submitted.",
    "export.create": "An export of transactions was requested.",
    "invitation.withdraw": "An open invitation was withdrawn, or ended because its author was removed. `details` has "
    "the `role`.",
    "key.create": "An API key was created.",
    "key.reissue": "The creation or rotation of an API key was repeated because its response was "
    "lost. The key got a new secret.",
    "key.revoke": "An API key was revoked.",
    "key.rotate": "An API key was replaced. The object is the new key; `details` has `replaces`.",
    "key.use_outside": "An API key was used from an IP address that it does not allow. `details` has `operation` and "
    "`count`, for repeats also `since` and `networks`.",
    "organization.limit": "The organisation's own limits in SOL were set. `details` has the new limits; null means "
    "the service's limit.",
    "organization.pause": "A pause of the organisation was requested.",
    "organization.restrict_keys": "The rule that new API keys need an end and allowed addresses was set or lifted. "
    "`details` has `required`.",
    "organization.roles": "A change to role addresses or the authority was requested. See `details`.",
    "organization.unpause": "The end of the organisation's pause was requested.",
    "organization.withdraw": "A withdrawal from the reserve was requested. `details` has `amount` and `to`.",
    "person.add_passkey": "A person added another passkey.",
    "person.invite": "A person was invited. The object is the invitation; `details` has the `role`.",
    "person.join": "A person joined the organisation. `details` has the `role`.",
    "person.remove": "A person was removed. The person's sessions and open invitations ended.",
    "person.sign_in": "Someone signed in to the dashboard. The object is the session; `details` has the `way`.",
    "person.sign_out": "A session of the dashboard was ended.",
    "person.step_up": "Someone confirmed their identity before a sensitive change. The object is the session.",
    "policy.clone": "A copy of a policy was requested. The object is the new policy; `details` has `source`.",
    "policy.create": "The creation of a policy was requested.",
    "policy.delete": "The deletion of a policy was requested.",
    "policy.update": "A change to a policy was requested. `details` has the requested `fields` and the `changes` of "
    "rules with `from` and `to`; allowlists are only in the policy's own log.",
    "recipient.register": "The registration of an address or a domain was requested.",
    "session.create": "A session token was requested for a wallet without one.",
    "session.rotate": "A new session token was requested for a wallet, to replace the previous one.",
    "signed_transaction.send": "A change signed elsewhere was sent. The object is the `tx_id` of the transaction.",
    "signed_transaction.withdraw": "A change awaiting a signature was withdrawn.",
    "slack.remove": "A Slack channel was removed. `details` has its `name` and `host`.",
    "slack.save": "A Slack channel was added, or got a new URL. `details` has its `name` and the `host` of the URL.",
    "slack.test": "A test message was sent to a Slack channel. `details` has the `error`, or null.",
    "topup.set": "A wallet's rule for automatic top-ups was replaced.",
    "transaction.failed": "The transaction of an earlier entry, named by `tx_id`, failed permanently, with no effect.",
    "wallet.archive": "The archiving of a wallet was requested.",
    "wallet.create": "The creation of a wallet under a policy was requested.",
    "wallet.forget_recipient": "A recipient known to a wallet was declared unknown. The object is the wallet.",
    "wallet.freeze": "A freeze of a wallet was requested.",
    "wallet.fund": "The funding of a wallet or, if `details` has `allocations`, of several wallets was requested.",
    "wallet.unfreeze": "An unfreeze of a wallet was requested.",
    "wallet.update": "A change to a wallet's policy, budget, label or tags was requested.",
    "wallet.withdraw": "A withdrawal from a wallet into the reserve was requested.",
    "webhook.create": "A webhook was registered. `details` has the host of its URL.",
    "webhook.delete": "A webhook was deleted.",
    "webhook.ping": "A `ping` was sent to a webhook. `details` has its `status`.",
    "webhook.resend": "A delivery was queued again. `details` has its `delivery_id`.",
    "webhook.rotate_secret": "A webhook's signing secret was replaced.",
    "webhook.update": "A webhook was changed. `details` has the changed `fields`.",
    "x402.fetch": "A resource was requested, for a quote or to pay for it on demand. The object is the "
    "`tx_id` of the payment, if one was made. `details` has `host` and `status`.",
}
"""Meaning of each action."""
Action = str
"""A name in `ACTIONS`."""
