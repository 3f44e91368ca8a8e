"""Recipients as requests and answers."""

from app.api.fields import Body, Category, ChainTime, IdempotencyKey, ListResponse, Page, Recipient, ResponseBody


class PutRecipient(Body):
    """Body of a registration. A domain needs `address`; for an address it must be absent or the same."""

    address: Recipient | None = None
    category: Category | None = None
    idempotency_key: IdempotencyKey | None = None


class RegisteredRecipient(ResponseBody):
    """What is registered for an address or a domain.

    `warnings` says what is odd about the address: a vault, of whatever organisation, whose payments its policy bounds.
    The answer to a registration also warns of an address without a known owner.
    """

    recipient: str
    address: str
    domain: str | None
    category: str
    effective_at: ChainTime
    warnings: list[str]


class ListRecipients(Page):
    """Query of the registrations."""


class RecipientPage(ListResponse[RegisteredRecipient]):
    """One page of registrations, the last changed first."""
