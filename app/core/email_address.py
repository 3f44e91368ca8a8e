"""E-mail addresses."""

from email_validator import EmailNotValidError, validate_email

#: Start of an RFC 2047 encoded word, which would change the address in a header or make it invalid.
_ENCODED_WORD = "=?"


def parse_address(text: str) -> str:
    """Return an address in the form for messages: ASCII with an encoded domain. Raises ValueError for invalid text."""
    if _ENCODED_WORD in text:
        raise ValueError("is not an e-mail address")
    try:
        found = validate_email(text, check_deliverability=False, allow_smtputf8=False, strict=True)
    except EmailNotValidError:
        raise ValueError("is not an e-mail address") from None
    assert found.ascii_email is not None
    return found.ascii_email
