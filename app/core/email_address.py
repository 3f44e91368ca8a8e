"""E-mail addresses."""

from email_validator import EmailNotValidError, validate_email

#: Begins an RFC 2047 encoded word, which would change the address in a header or make it invalid.
_ENCODED_WORD = "=?"


def parse_address(text: str) -> str:
    """Return an address as it appears in a message: ASCII, with an encoded domain. Raises ValueError if invalid."""
    if _ENCODED_WORD in text:
        raise ValueError("not an e-mail address")
    try:
        found = validate_email(text, check_deliverability=False, allow_smtputf8=False, strict=True)
    except EmailNotValidError:
        raise ValueError("not an e-mail address") from None
    assert found.ascii_email is not None
    return found.ascii_email
