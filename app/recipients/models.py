"""Recipients: what the operator attests of an address or a domain."""

from app.api.fields import Answer, Body, Category, IdempotencyKey, Recipient, Time


class PutRecipient(Body):
    """Body of a registration; `address` is needed for a domain and must be absent or the same for an address."""

    address: Recipient | None = None
    category: Category | None = None
    idempotency_key: IdempotencyKey | None = None


class RegisteredRecipient(Answer):
    """What is registered."""

    recipient: str
    address: str
    domain: str | None
    category: str
    effective_at: Time
