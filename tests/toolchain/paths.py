"""Paths of the toolchain and of what it builds."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLCHAIN = ROOT / "programs/toolchain"
IDL = ROOT / "idl/agent_vault.json"

# `build --check` sets this to another program when it cannot expect the committed bytes.
PROGRAM = Path(os.environ.get("AGENT_VAULT_SO", ROOT / "programs/agent_vault.so"))

PACKAGES = ("rustc-web", "rust-web-src", "cargo-web", "llvm-22-dev", "g++")
