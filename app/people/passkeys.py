"""Passkeys: their registration and their use, by `webauthn`. Each challenge is a row that is used once."""

import json
from dataclasses import dataclass
from typing import Any, Literal

import webauthn
from sqlalchemy import Connection
from webauthn.helpers import base64url_to_bytes, bytes_to_base64url
from webauthn.helpers.exceptions import WebAuthnException
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

Purpose = Literal["register", "sign_in", "step_up"]
Json = dict[str, Any]

#: Milliseconds in which a challenge must be answered.
CHALLENGE_LIFETIME = 5 * 60_000
_NAME = "Agent Vault"
_REFUSED = "The passkey was not accepted. Try again."


@dataclass(frozen=True, slots=True)
class Ceremony:
    """A browser that signs with a passkey: ``holder`` is the digest of its cookie, ``origin`` that of the dashboard."""

    party: RelyingParty
    origin: str
    holder: str
    now: int

    def register_options(self, conn: Connection, person_id: str, name: str) -> Json:
        """Return what the browser needs to make a passkey for a person."""
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
        self._remember(conn, options.challenge, "register", person_id)
        return _json(webauthn.options_to_json(options))

    def use_options(self, conn: Connection, purpose: Purpose, person_id: str | None = None) -> Json:
        """Return what the browser needs to sign with a passkey, of a certain person or of whoever signs in."""
        options = webauthn.generate_authentication_options(
            rp_id=self.party.id,
            allow_credentials=[] if person_id is None else _descriptors(passkeys_of(conn, person_id)),
            user_verification=UserVerificationRequirement.REQUIRED,
        )
        self._remember(conn, options.challenge, purpose, person_id)
        return _json(webauthn.options_to_json(options))

    def registered(self, conn: Connection, credential: str) -> Passkey:
        """Return the passkey that the browser made. Raises ``authentication_failed``."""
        answer, challenge = self._challenge(conn, credential, "register")
        try:
            verified = webauthn.verify_registration_response(
                credential=answer,
                expected_challenge=base64url_to_bytes(challenge.challenge),
                expected_rp_id=self.party.id,
                expected_origin=self.origin,
                require_user_verification=True,
            )
        except (WebAuthnException, ValueError):
            raise AuthenticationError("authentication_failed", _REFUSED) from None
        assert challenge.person_id is not None
        return Passkey(
            credential_id=bytes_to_base64url(verified.credential_id),
            person_id=challenge.person_id,
            public_key=verified.credential_public_key,
            sign_count=verified.sign_count,
            created_at=self.now,
        )

    def used(self, conn: Connection, credential: str, purpose: Purpose) -> str:
        """Return the id of the person whose passkey signed. Raises ``authentication_failed``."""
        answer, challenge = self._challenge(conn, credential, purpose)
        given = answer.get("id")
        found = passkey(conn, given) if isinstance(given, str) else None
        if found is None or challenge.person_id not in (None, found.person_id):
            raise AuthenticationError("authentication_failed", _REFUSED)
        try:
            verified = webauthn.verify_authentication_response(
                credential=answer,
                expected_challenge=base64url_to_bytes(challenge.challenge),
                expected_rp_id=self.party.id,
                expected_origin=self.origin,
                credential_public_key=found.public_key,
                credential_current_sign_count=found.sign_count,
                require_user_verification=True,
            )
        except (WebAuthnException, ValueError):
            raise AuthenticationError("authentication_failed", _REFUSED) from None
        note_passkey_use(conn, found.credential_id, verified.new_sign_count, self.now)
        return found.person_id

    def _remember(self, conn: Connection, challenge: bytes, purpose: Purpose, person_id: str | None) -> None:
        until = self.now + CHALLENGE_LIFETIME
        made = Challenge(bytes_to_base64url(challenge), self.holder, purpose, person_id, until)
        insert_challenge(conn, made, self.now)

    def _challenge(self, conn: Connection, credential: str, purpose: Purpose) -> tuple[Json, Challenge]:
        """Return the browser's answer and use its challenge up. Raises ``authentication_failed``."""
        answer = _json(credential)
        try:
            signed = _json(base64url_to_bytes(answer["response"]["clientDataJSON"]).decode())["challenge"]
        except (ValueError, KeyError, TypeError):
            signed = None
        known = isinstance(signed, str) and take_challenge(conn, signed, self.holder, purpose, self.now)
        if not known:
            raise AuthenticationError("authentication_failed", "The passkey was asked for too long ago. Try again.")
        return answer, known


def _descriptors(known: list[Passkey]) -> list[PublicKeyCredentialDescriptor]:
    return [PublicKeyCredentialDescriptor(id=base64url_to_bytes(one.credential_id)) for one in known]


def _json(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
