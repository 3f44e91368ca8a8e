"""Registers and uses passkeys, with the library `webauthn`. Each challenge is a row that can be used once."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import webauthn
from cryptography.exceptions import InvalidSignature
from sqlalchemy import Connection
from webauthn.helpers import (
    base64url_to_bytes,
    bytes_to_base64url,
    decode_credential_public_key,
    decoded_public_key_to_cryptography,
    verify_signature,
)
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from app.core.errors import AuthenticationError
from app.people.relying_party import RelyingParty
from app.store.people import (
    Challenge,
    Passkey,
    insert_challenge,
    note_passkey_use,
    passkey,
    passkeys_of,
    take_challenge,
)

#: A passkey is created for the person or key that is signed in (`register`), or with an invitation (`join`).
Making = Literal["register", "join"]
Using = Literal["sign_in", "step_up"]
Json = dict[str, Any]
T = TypeVar("T")

#: Milliseconds within which a challenge must be answered.
CHALLENGE_LIFETIME = 5 * 60_000
_NAME = "Agent Vault"
_REFUSED = "The passkey was not accepted. Try again."
#: A challenge or the id of a credential, in base64url. An id has at most 1023 bytes (WebAuthn, section 4).
_NAMED = re.compile(r"[A-Za-z0-9_-]{1,1364}")


@dataclass(frozen=True, slots=True)
class Ceremony:
    """One browser's creation or use of a passkey, at the Unix millisecond ``now``.

    ``holder`` is the digest of the browser's cookie. ``origin`` is the origin of the dashboard.
    """

    party: RelyingParty
    origin: str
    holder: str
    now: int

    def register_options(self, conn: Connection, purpose: Making, person_id: str, name: str) -> Json:
        """Return the options that the browser needs to create a passkey for a person."""
        options = webauthn.generate_registration_options(
            rp_id=self.party.id,
            rp_name=_NAME,
            user_id=person_id.encode(),
            user_name=name,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=_descriptors(passkeys_of(conn, person_id)),
        )
        self._remember(conn, options.challenge, purpose, person_id)
        return _json(webauthn.options_to_json(options))

    def use_options(self, conn: Connection, purpose: Using, person_id: str | None = None) -> Json:
        """Return the options that the browser needs to sign with a passkey. ``person_id`` is None for a sign-in."""
        options = webauthn.generate_authentication_options(
            rp_id=self.party.id,
            allow_credentials=[] if person_id is None else _descriptors(passkeys_of(conn, person_id)),
            user_verification=UserVerificationRequirement.REQUIRED,
        )
        self._remember(conn, options.challenge, purpose, person_id)
        return _json(webauthn.options_to_json(options))

    def registered(self, conn: Connection, credential: str, purpose: Making) -> Passkey:
        """Return the passkey that the browser created.

        Raises ``authentication_failed`` for an invalid response, an expired challenge or a known passkey.
        """
        answer, named, challenge = self._answered(conn, credential, purpose)
        verified = _judged(
            lambda: webauthn.verify_registration_response(
                credential=answer,
                expected_challenge=base64url_to_bytes(challenge.challenge),
                expected_rp_id=self.party.id,
                expected_origin=self.origin,
                require_user_verification=True,
            )
        )
        usable = _judged(lambda: _can_verify(verified.credential_public_key))
        # The message does not reveal that the passkey already belongs to a person.
        if not usable or bytes_to_base64url(verified.credential_id) != named or passkey(conn, named) is not None:
            raise AuthenticationError("authentication_failed", _REFUSED)
        assert challenge.person_id is not None
        return Passkey(
            credential_id=named,
            person_id=challenge.person_id,
            public_key=verified.credential_public_key,
            sign_count=verified.sign_count,
            created_at=self.now,
        )

    def used(self, conn: Connection, credential: str, purpose: Using) -> str:
        """Return the id of the person who owns the passkey that signed.

        Raises ``authentication_failed`` for an expired challenge, an unknown passkey, a passkey of another person than
        the challenge names, or an invalid signature.
        """
        answer, named, challenge = self._answered(conn, credential, purpose)
        found = passkey(conn, named)
        if found is None or challenge.person_id not in (None, found.person_id):
            raise AuthenticationError("authentication_failed", _REFUSED)
        verified = _judged(
            lambda: webauthn.verify_authentication_response(
                credential=answer,
                expected_challenge=base64url_to_bytes(challenge.challenge),
                expected_rp_id=self.party.id,
                expected_origin=self.origin,
                credential_public_key=found.public_key,
                credential_current_sign_count=found.sign_count,
                require_user_verification=True,
            )
        )
        note_passkey_use(conn, found.credential_id, verified.new_sign_count, self.now)
        return found.person_id

    def _remember(self, conn: Connection, challenge: bytes, purpose: Making | Using, person_id: str | None) -> None:
        until = self.now + CHALLENGE_LIFETIME
        made = Challenge(bytes_to_base64url(challenge), self.holder, purpose, person_id, until)
        insert_challenge(conn, made, self.now)

    def _answered(self, conn: Connection, credential: str, purpose: Making | Using) -> tuple[Json, str, Challenge]:
        """Return the browser's response, the credential's id in the response, and the deleted challenge.

        Raises ``authentication_failed`` if the response is malformed, or its challenge is unknown, used or expired.
        """
        answer = _json(credential)
        try:
            signed = _named(_json(base64url_to_bytes(answer["response"]["clientDataJSON"]).decode())["challenge"])
        except (ValueError, KeyError, TypeError):
            signed = None
        known = None if signed is None else take_challenge(conn, signed, self.holder, purpose, self.now)
        if known is None:
            raise AuthenticationError("authentication_failed", "The passkey request is no longer valid. Try again.")
        named = _named(answer.get("id"))
        if named is None:
            raise AuthenticationError("authentication_failed", _REFUSED)
        return answer, named, known


def _named(given: object) -> str | None:
    """Return a well-formed challenge or id, or None for anything else."""
    return given if isinstance(given, str) and _NAMED.fullmatch(given) else None


def _judged(judge: Callable[[], T]) -> T:
    """Return the result of ``judge``, a check by the library. Raises ``authentication_failed`` if the check fails."""
    try:
        return judge()
    except Exception:  # noqa: BLE001 - the library lacks errors of its own for many malformed answers
        raise AuthenticationError("authentication_failed", _REFUSED) from None


def _can_verify(public_key: bytes) -> bool:
    """Return True if the key can verify signatures: it is complete, valid and fits its algorithm."""
    decoded = decode_credential_public_key(public_key)
    key = decoded_public_key_to_cryptography(decoded)
    try:
        verify_signature(public_key=key, signature_alg=decoded.alg, signature=b"", data=b"")
    except InvalidSignature:
        return True
    return False


def _descriptors(known: list[Passkey]) -> list[PublicKeyCredentialDescriptor]:
    return [PublicKeyCredentialDescriptor(id=base64url_to_bytes(one.credential_id)) for one in known]


def _json(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
