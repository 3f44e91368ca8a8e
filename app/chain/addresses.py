"""Derives the addresses of the program's accounts from their seeds."""

import hashlib
from functools import lru_cache

from solders.pubkey import Pubkey

from app.core.identifiers import policy_key

SYSTEM_PROGRAM = Pubkey.from_string("11111111111111111111111111111111")
TOKEN_PROGRAM = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022_PROGRAM = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
TOKEN_PROGRAMS = frozenset({TOKEN_PROGRAM, TOKEN_2022_PROGRAM})
ASSOCIATED_TOKEN_PROGRAM = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")

_CACHE_SIZE = 65_536


def org_hash(org_id: str) -> bytes:
    """Return the 32-byte hash of an organisation's id that the program uses instead of the id."""
    return _sha256(org_id)


def agent_hash(agent_id: str) -> bytes:
    """Return the 32-byte hash of an agent's id that the program uses instead of the id."""
    return _sha256(agent_id)


def domain_digest(domain: str) -> bytes:
    """Return the 32-byte digest that the program hashes once more to get a domain's hash. Case is ignored."""
    return _sha256(domain.lower())


def domain_hash(domain: str) -> bytes:
    """Return the 32-byte hash that represents a domain in the program, including on allowlists.

    The program itself hashes the digest a second time. Otherwise an operator could register a "domain" with the same 32
    bytes as an allowed address.
    """
    return hashlib.sha256(domain_digest(domain)).digest()


def parse_address(text: str) -> Pubkey | None:
    """Return the address that `text` encodes in base58, or None if `text` is not an address."""
    try:
        return Pubkey.from_string(text) if 32 <= len(text) <= 44 else None
    except ValueError:
        return None


class Addresses:
    """Derives the addresses of one deployment: a program, a mint and the mint's token program.

    A derivation takes 10 to 100 microseconds, so the results are cached.
    """

    def __init__(self, program_id: Pubkey, mint: Pubkey, token_program: Pubkey = TOKEN_PROGRAM) -> None:
        self.program_id = program_id
        self.mint = mint
        self.token_program = token_program

    def org(self, creator: Pubkey, org_id: str) -> Pubkey:
        """Return the address of the organisation that `creator` created with this id."""
        return _derive(self.program_id, b"org", bytes(creator), org_hash(org_id))

    def policy(self, org: Pubkey, key: bytes) -> Pubkey:
        """Return the address of the organisation's policy with this 16-byte key."""
        return _derive(self.program_id, b"policy", bytes(org), key)

    def preset(self, org: Pubkey, policy_id: str) -> Pubkey:
        """Return the address of the preset with this id, such as `pol_moderate`."""
        return self.policy(org, policy_key(policy_id))

    def allowlist(self, policy: Pubkey, version: int) -> Pubkey:
        """Return the address of one version of a policy's allowlist."""
        return _derive(self.program_id, b"allowlist", bytes(policy), version.to_bytes(8, "little"))

    def budget(self, org: Pubkey, key: bytes) -> Pubkey:
        """Return the address of the budget with this 16-byte key."""
        return _derive(self.program_id, b"budget", bytes(org), key)

    def vault(self, org: Pubkey, agent_id: str) -> Pubkey:
        """Return the address of the agent's vault, which appears as payer or payee on the chain."""
        return _derive(self.program_id, b"vault", bytes(org), agent_hash(agent_id))

    def approval(self, vault: Pubkey, reference: bytes) -> Pubkey:
        """Return the address of the approval with this 16-byte reference."""
        return _derive(self.program_id, b"approval", bytes(vault), reference)

    def recipient(self, org: Pubkey, address: Pubkey) -> Pubkey:
        """Return the address of the account that holds the organisation's registration of a recipient's address.

        The address is derived from the organisation's address with a seed, so that the program can compute it without
        searching for a bump. The seed is the SHA-256 hash of the recipient's address. The highest bit of each byte of
        the hash is cleared, because a seed must be valid text.
        """
        digest = hashlib.sha256(bytes(address)).digest()
        return Pubkey.create_with_seed(org, bytes(byte & 0x7F for byte in digest).decode(), self.program_id)

    def escrow(self, vault: Pubkey, counter: int) -> Pubkey:
        """Return the address of the vault's escrow number `counter`, counted from zero."""
        return self.escrow_with_bump(vault, counter)[0]

    def escrow_with_bump(self, vault: Pubkey, counter: int) -> tuple[Pubkey, int]:
        """Return an escrow's address and the bump of its derivation."""
        return _find(self.program_id, b"escrow", bytes(vault), counter.to_bytes(8, "little"))

    def escrow_tokens(self, escrow: Pubkey) -> Pubkey:
        """Return the address of an escrow's token account, derived from the escrow's address with a seed."""
        return Pubkey.create_with_seed(escrow, "escrow_tokens", self.token_program)

    def allowance(self, vault: Pubkey, counter: int) -> Pubkey:
        """Return the address of the vault's allowance number `counter`, counted from zero."""
        return self.allowance_with_bump(vault, counter)[0]

    def allowance_with_bump(self, vault: Pubkey, counter: int) -> tuple[Pubkey, int]:
        """Return an allowance's address and the bump of its derivation."""
        return _find(self.program_id, b"allowance", bytes(vault), counter.to_bytes(8, "little"))

    def allowance_tokens(self, allowance: Pubkey) -> Pubkey:
        """Return the address of an allowance's token account, derived from the allowance's address with a seed.

        The vault owns the token account.
        """
        return Pubkey.create_with_seed(allowance, "allowance_tokens", self.token_program)

    def token_account(self, owner: Pubkey) -> Pubkey:
        """Return the owner's associated token account for the mint."""
        return _derive(ASSOCIATED_TOKEN_PROGRAM, bytes(owner), bytes(self.token_program), bytes(self.mint))


def _derive(program_id: Pubkey, *seeds: bytes) -> Pubkey:
    return _find(program_id, *seeds)[0]


@lru_cache(maxsize=_CACHE_SIZE)
def _find(program_id: Pubkey, *seeds: bytes) -> tuple[Pubkey, int]:
    return Pubkey.find_program_address(list(seeds), program_id)


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
