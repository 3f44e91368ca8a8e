"""The common part of the bodies of requests that move money."""

from app.api.fields import ChangeBody, Confirmation


class MoneyBody(ChangeBody):
    """Body of a request that moves money.

    With ``after_restore``, the client confirms that an earlier copy of this request has not moved money. After a
    restore from a backup or lost commits, the database guard may require this confirmation. A replay may differ from
    the first request in this field.
    """

    after_restore: Confirmation = False
    """True if you have checked that this request has not moved money before. Required for 24 hours after a restore or
    lost commits, unless an admin has marked the gap as checked.
    """
