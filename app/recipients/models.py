"""Request and response bodies of recipients."""

from app.api.fields import Body, Category, ChainTime, IdempotencyKey, ListResponse, Page, Recipient, ResponseBody


class PutRecipient(Body):
    """Body of a registration. A domain needs `address`. For an address, omit it or repeat the same one."""

    address: Recipient | None = None
    category: Category | None = None
    idempotency_key: IdempotencyKey | None = None


class RegisteredRecipient(ResponseBody):
    """The registration of an address or a domain.

    `warnings` reports an address that is a vault, of this or another organisation, because the vault's policy binds the
    money there. The response to a registration also warns about an address without a known owner.
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
    """One page of registrations, the most recently changed first."""
