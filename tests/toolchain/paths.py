"""Where the toolchain and what it builds are."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLCHAIN = ROOT / "programs/toolchain"
IDL = ROOT / "idl/agent_vault.json"

# `build --check` names another program where it could not expect the committed bytes.
PROGRAM = Path(os.environ.get("AGENT_VAULT_SO", ROOT / "programs/agent_vault.so"))

PACKAGES = ("rustc-web", "rust-web-src", "cargo-web", "llvm-22-dev", "g++")
