"""Builds the instructions of policies and their allowlists."""

import hashlib
from collections.abc import Sequence
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.builder import Builder
from app.chain.rules import Rules


class PolicyInstructions(Builder):
    """Builds the instructions that create, change and close policies and write their allowlists."""

    def create_policy(
        self, *, payer: Pubkey, authority: Pubkey, key: bytes, rules: Rules, expected_sequence: int
    ) -> Instruction:
        """Create a policy without an allowlist. `expected_sequence` is the organisation's `authority_sequence`."""
        return self._build(
            "create_policy",
            {"key": key, "rules": rules.to_args(), "expected_sequence": expected_sequence},
            payer=payer,
            authority=authority,
            policy=self._addresses.policy(self.org, key),
        )

    def update_policy(
        self,
        *,
        authority: Pubkey,
        policy: Pubkey,
        expected_version: int,
        rules: Rules,
        new_allowlist: Pubkey | None = None,
        entries: Sequence[bytes] = (),
        old_allowlist: Pubkey | None = None,
        rent_receiver: Pubkey | None = None,
    ) -> Instruction:
        """Replace the rules, and with `new_allowlist` the allowlist, of a policy that is still at `expected_version`.

        Rules without `restricted` remove the allowlist. `entries` are the required contents of the new list.
        `old_allowlist` is closed, and its rent goes back to its payer, `rent_receiver`.
        """
        return self._build(
            "update_policy",
            {
                "expected_version": expected_version,
                "rules": rules.to_args(),
                "digest": None if new_allowlist is None else _digest(entries),
            },
            authority=authority,
            policy=policy,
            new_allowlist=new_allowlist,
            old_allowlist=old_allowlist,
            rent_receiver=rent_receiver,
        )

    def close_policy(
        self,
        *,
        authority: Pubkey,
        policy: Pubkey,
        policy_rent_receiver: Pubkey,
        expected_version: int,
        next_version: int,
        allowlist: Pubkey | None = None,
        allowlist_rent_receiver: Pubkey | None = None,
        next_rent_receiver: Pubkey | None = None,
    ) -> Instruction:
        """Close a policy without vaults that is still at `expected_version`, together with its allowlist.

        Also closes the policy's next allowlist, `next_version`, if it was written.
        """
        return self._build(
            "close_policy",
            {"expected_version": expected_version},
            authority=authority,
            policy=policy,
            policy_rent_receiver=policy_rent_receiver,
            allowlist=allowlist,
            allowlist_rent_receiver=allowlist_rent_receiver,
            next_allowlist=self._addresses.allowlist(policy, next_version),
            next_rent_receiver=next_rent_receiver,
        )

    def close_allowlist(self, *, authority: Pubkey, policy: Pubkey, version: int, rent_receiver: Pubkey) -> Instruction:
        """Discard the policy's next allowlist. Its `version` is never used again."""
        return self._build(
            "close_allowlist",
            {},
            authority=authority,
            policy=policy,
            allowlist=self._addresses.allowlist(policy, version),
            rent_receiver=rent_receiver,
        )

    def write_allowlist(
        self,
        *,
        payer: Pubkey,
        writer: Pubkey,
        policy: Pubkey,
        version: int,
        offset: int,
        entries: Sequence[bytes],
        seal: bool,
    ) -> Instruction:
        """Write a chunk of the policy's next allowlist, `version`.

        The entries of all chunks must be in ascending order. `writer` is the operator or the authority. Pass `seal`
        with the last chunk. Afterwards, the list cannot be changed, only put into force.
        """
        return self._build(
            "write_allowlist",
            {"offset": offset, "entries": list(entries), "seal": seal},
            payer=payer,
            writer=writer,
            policy=policy,
            allowlist=self._addresses.allowlist(policy, version),
        )


def _digest(entries: Sequence[bytes]) -> dict[str, Any]:
    return {"count": len(entries), "hash": hashlib.sha256(b"".join(entries)).digest()}
