"""What the bodies of requests that move money share."""

from app.api.fields import Body


class MoneyBody(Body):
    """Body of a request that moves money.

    ``after_restore`` says that the client has checked that the same request was not carried out before; a service that
    was restored from a backup asks for it. It is no part of what a repetition must have in common.
    """

    after_restore: bool = False
