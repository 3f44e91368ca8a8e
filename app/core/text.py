"""Text from clients: the characters that it must not contain, the stored form of names, and base64."""

import base64
import re
import unicodedata

#: Control characters except tab, line feed and carriage return, in a notation for both Python and ECMA regexes.
CONTROL = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f"
#: Characters that a name must not contain, because readers cannot see them: control characters, invisible and
#: zero-width characters, and changes of the writing direction. Private characters have no defined shape. Tags and
#: variation selectors can hide text for machines. U+FE0F is accepted, because keyboards put it after emoji, but it is
#: not stored.
HIDDEN = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ue000-\uf8ff\ufdd0-\ufdef\ufff0-\ufffc\ufffe\uffff"
)
#: Characters that are refused too, but are not in the OpenAPI document's patterns. Generators of TypeScript write `\u`
#: escapes as characters, and a literal must not contain the two line ends. Without the flag `u`, JavaScript rejects
#: ranges beyond U+FFFF.
HIDDEN_BEYOND_PATTERNS = (
    "\u2028\u2029\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
#: The variation selector that requests the coloured form of an emoji.
EMOJI_FORM = "\ufe0f"
_BLANKS = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_HAS_CONTROL = re.compile(f"[{CONTROL}]")
_HAS_HIDDEN = re.compile(f"[{HIDDEN}{HIDDEN_BEYOND_PATTERNS}]")


def has_control(text: str) -> bool:
    """Return True if a text contains control characters."""
    return _HAS_CONTROL.search(text) is not None


def has_hidden(text: str) -> bool:
    """Return True if a text contains characters that a reader cannot see."""
    return _HAS_HIDDEN.search(text) is not None


def visible(text: str) -> str:
    """Return a text without the characters that a reader cannot see. Some of these reverse the text around them."""
    return _HAS_HIDDEN.sub("", text)


def composed(text: str) -> str:
    """Return a text in NFC, with one kind of space and no emoji selectors, so that texts that look equal are equal."""
    return unicodedata.normalize("NFC", _BLANKS.sub(" ", text.replace(EMOJI_FORM, "")))


def plain(line: str) -> str:
    """Return a line in printable ASCII. Foreign text in it can neither control a terminal nor imitate other text."""
    return "".join(one if one.isascii() and one.isprintable() else ascii(one)[1:-1] for one in line)


def decode_base64(text: str) -> bytes:
    """Decode base64 in the standard or the URL-safe alphabet, with or without padding. Raises ValueError."""
    digits = text.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
