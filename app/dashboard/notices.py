"""What pages say after an action; their address names only the key, so nobody can put words into our mouth."""

from collections.abc import Mapping

NOTICES: Mapping[str, str] = {
    "decided": "The dispute is decided, and the money was sent as you decided.",
    "funded": "The money is in the vaults.",
    "funding-pending": "The funding was sent. The chain has not confirmed it yet; the feed tells when it has.",
    "registered": "The recipient is registered.",
    "topup": "The rule for automatic top-ups was saved.",
    "withdrawal-pending": "The withdrawal was sent. The chain has not confirmed it yet; the feed tells when it has.",
    "withdrawn": "The money is back in the reserve.",
    "approved": "The payment was approved. Its agent may make it once, within 24 hours.",
    "confirmed": "Confirmed: for five minutes, changes need no other confirmation. Repeat what you were about to do.",
    "frozen": "Frozen. The chain refuses its payments from now on.",
    "frozen-selected": "The selected vaults are frozen.",
    "joined": "Welcome. From now on you sign in with your passkey.",
    "joined-company": "Welcome. From now on you sign in with your company's account.",
    "paused": "All vaults are paused. The chain refuses their payments from now on.",
    "rejected": "The payment was rejected.",
    "policy-created": "The policy was created. Attach vaults to it on their pages.",
    "policy-deleted": "The policy was deleted. Its audit log stays.",
    "policy-saved": "Saved. The chain judges every payment by the new rules from now on.",
    "policy": "The vault is under the chosen policy.",
    "removed": "The person was removed, and signed out everywhere.",
    "session-ended": "That browser was signed out.",
    "session-revoked": "The session has ended: the agent cannot pay until you open another.",
    "signed-out": "You are signed out.",
    "unfrozen": "The vault is active again.",
    "unpaused": "The pause has ended.",
}
