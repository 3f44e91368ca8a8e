"""A SoftHSM token in a separate folder. A test can make the token's module hang or refuse logins.

Keys are made in another process, because a process logs in to a token only once.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.needs import skip_or_fail

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "correct-horse-7391"
#: A library in front of SoftHSM's. Its numbers are the positions of functions in the list of PKCS#11.
_SHIM = r"""
#include <dlfcn.h>
#include <unistd.h>
#include <string.h>
enum { LOGIN = 18, SIGN = 43, FUNCTIONS = 68 };
struct list { unsigned char version[8]; void *at[FUNCTIONS]; };
typedef unsigned long (*call)(unsigned long, void *, unsigned long, void *, void *);
typedef unsigned long (*login_call)(unsigned long, unsigned long, void *, unsigned long);
static struct list ours, *theirs;
static unsigned long sign(unsigned long s, void *data, unsigned long n, void *out, void *out_n) {
  while (access(CONTROL "/hang", F_OK) == 0) usleep(2000);
  return ((call)theirs->at[SIGN])(s, data, n, out, out_n);
}
static unsigned long login(unsigned long s, unsigned long user, void *pin, unsigned long n) {
  if (access(CONTROL "/locked", F_OK) == 0) return 0xA4; /* CKR_PIN_LOCKED */
  return ((login_call)theirs->at[LOGIN])(s, user, pin, n);
}
unsigned long C_GetFunctionList(struct list **found) {
  void *module = dlopen(THEIRS, RTLD_NOW | RTLD_LOCAL);
  if (!module) return 5; /* CKR_GENERAL_ERROR */
  unsigned long failed = ((unsigned long (*)(struct list **))dlsym(module, "C_GetFunctionList"))(&theirs);
  if (failed) return failed;
  memcpy(&ours, theirs, sizeof ours);
  ours.at[SIGN] = sign;
  ours.at[LOGIN] = login;
  *found = &ours;
  return 0;
}
"""
_MAKE = """
import json, sys
import pkcs11
from asn1crypto.core import PrintableString
from pkcs11 import Attribute, KeyType, Mechanism
from pkcs11.util.ec import encode_named_curve_parameters
module, token, pin, kinds = sys.argv[1:]
points = {}
with pkcs11.lib(module).get_token(token_label=token).open(user_pin=pin, rw=True) as session:
    for number, (label, kind) in enumerate(json.loads(kinds).items(), 1):
        if kind == "rsa":
            session.generate_keypair(KeyType.RSA, 2048, store=True, label=label, id=bytes([number]))
            continue
        edwards = kind == "ed25519"
        curve = PrintableString("edwards25519").dump() if edwards else encode_named_curve_parameters("secp256r1")
        family = KeyType.EC_EDWARDS if edwards else KeyType.EC
        made = Mechanism.EC_EDWARDS_KEY_PAIR_GEN if edwards else Mechanism.EC_KEY_PAIR_GEN
        parameters = session.create_domain_parameters(family, {Attribute.EC_PARAMS: curve}, local=True)
        public, _ = parameters.generate_keypair(mechanism=made, store=True, label=label, id=bytes([number]))
        points[label] = bytes(public[Attribute.EC_POINT])[2:].hex()
print(json.dumps(points))
"""


class SoftHsm:
    """A token with keys. ``points`` are the public keys of the elliptic-curve keys, by label."""

    def __init__(self, folder: Path, keys: dict[str, str]) -> None:
        self.folder, self.label = folder, folder.name
        self.tokens = folder / "tokens"
        self.tokens.mkdir(parents=True)
        self.config = folder / "softhsm2.conf"
        self.config.write_text(f"directories.tokendir = {self.tokens}\nlog.level = ERROR\n")
        self.pin_file = folder / "pin"
        self.write_pin(PIN)
        init = ["softhsm2-util", "--init-token", "--free", "--label", self.label, "--pin", PIN, "--so-pin", PIN]
        subprocess.run(init, env=self.env, check=True, capture_output=True)
        make = [sys.executable, "-c", _MAKE, str(MODULE), self.label, PIN, json.dumps(keys)]
        made = subprocess.run(make, env=self.env, check=True, capture_output=True, text=True)
        self.points = {label: bytes.fromhex(point) for label, point in json.loads(made.stdout).items()}
        self.module = self._shim()

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SOFTHSM2_CONF": str(self.config)}

    def uri(self, label: str, *, module: Path | None = None, pin: Path | None = None, token: str | None = None) -> str:
        """Return the URI of a key."""
        return (
            f"pkcs11:token={token or self.label};object={label}?module-path={module or self.module}"
            f"&pin-source=file:{pin or self.pin_file}"
        )

    def write_pin(self, pin: str) -> None:
        self.pin_file.touch(mode=0o600)
        self.pin_file.write_text(f"{pin}\n")

    def hang(self, on: bool) -> None:
        """Make every signature wait, or let the waiting ones continue."""
        self._control("hang", on=on)

    def lock(self, on: bool) -> None:
        """Refuse every login as after too many wrong PINs, or stop refusing. SoftHSM itself never locks."""
        self._control("locked", on=on)

    def take_out(self) -> None:
        self.tokens.rename(self.folder / "away")
        self.tokens.mkdir()

    def put_back(self) -> None:
        self.tokens.rmdir()
        (self.folder / "away").rename(self.tokens)

    def _control(self, name: str, *, on: bool) -> None:
        path = self.folder / name
        path.touch() if on else path.unlink(missing_ok=True)

    def _shim(self) -> Path:
        source, library = self.folder / "shim.c", self.folder / "shim.so"
        source.write_text(_SHIM)
        names = (f'-DCONTROL="{self.folder}"', f'-DTHEIRS="{MODULE}"')
        compile_ = ["cc", "-shared", "-fPIC", "-O1", *names, "-o", str(library), str(source)]
        subprocess.run(compile_, check=True, capture_output=True)
        return library


def require_softhsm() -> None:
    """Skip the test if SoftHSM or a C compiler is missing; fail if CI=true."""
    missing = [name for name in ("softhsm2-util", "cc") if shutil.which(name) is None]
    if not MODULE.exists():
        missing.append(str(MODULE))
    if missing:
        skip_or_fail(f"missing: {', '.join(missing)} (Debian: softhsm2, gcc)")
