"""A client of Agent Vault, which lets AI agents pay USDC within limits that a program on the chain enforces."""

from agent_vault_client import types as types
from agent_vault_client._core import headers_of as headers_of
from agent_vault_client._core import idempotency_key_of as idempotency_key_of
from agent_vault_client.client import Admin as Admin
from agent_vault_client.client import AsyncAdmin as AsyncAdmin
from agent_vault_client.client import AsyncVault as AsyncVault
from agent_vault_client.client import Vault as Vault
from agent_vault_client.errors import AuthenticationError as AuthenticationError
from agent_vault_client.errors import BusinessError as BusinessError
from agent_vault_client.errors import ConflictError as ConflictError
from agent_vault_client.errors import DeadlineExceeded as DeadlineExceeded
from agent_vault_client.errors import InvalidAnswer as InvalidAnswer
from agent_vault_client.errors import NotFoundError as NotFoundError
from agent_vault_client.errors import OutcomeUnknown as OutcomeUnknown
from agent_vault_client.errors import PolicyViolation as PolicyViolation
from agent_vault_client.errors import RateLimited as RateLimited
from agent_vault_client.errors import RequestError as RequestError
from agent_vault_client.errors import SignatureInvalid as SignatureInvalid
from agent_vault_client.errors import StoreError as StoreError
from agent_vault_client.errors import UnavailableError as UnavailableError
from agent_vault_client.errors import Unreachable as Unreachable
from agent_vault_client.errors import VaultError as VaultError
from agent_vault_client.stores import FolderStore as FolderStore
from agent_vault_client.stores import KeyStore as KeyStore
from agent_vault_client.stores import StoredKey as StoredKey
from agent_vault_client.webhooks import verify_webhook as verify_webhook
