// Wallets of the tests, by the Wallet Standard. The first signs with a real key; the others are of no use.
"use strict";

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const PKCS8 = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

async function sign({ transaction, account, chain }) {
  if (chain !== "solana:localnet") throw new Error(`unexpected chain ${chain}`);
  const key = await crypto.subtle.importKey("pkcs8", new Uint8Array([...PKCS8, ...bytes(KEYS.seed)]), "Ed25519", false, ["sign"]);
  const message = transaction.slice(1 + 64 * transaction[0]);
  const signature = new Uint8Array(await crypto.subtle.sign("Ed25519", key, message));
  // The signatures are in the order of the keys, which follow the header of three bytes, a version byte and the count.
  const first = message[0] & 0x80 ? 5 : 4;
  for (let place = 0; place < transaction[0]; place++) {
    const signer = message.slice(first + 32 * place, first + 32 * (place + 1));
    if (signer.every((byte, index) => byte === account.publicKey[index])) {
      const signedTransaction = transaction.slice();
      signedTransaction.set(signature, 1 + 64 * place);
      return [{ signedTransaction }];
    }
  }
  throw new Error("not a signer");
}

async function publicKey() {
  const key = await crypto.subtle.importKey("pkcs8", new Uint8Array([...PKCS8, ...bytes(KEYS.seed)]), "Ed25519", true, ["sign"]);
  const { x } = await crypto.subtle.exportKey("jwk", key);
  return bytes(x.replace(/-/g, "+").replace(/_/g, "/"));
}

function wallet(name, { address = KEYS.address, signTransaction = sign, versions = ["legacy", 0] } = {}) {
  const made = {
    version: "1.0.0",
    name,
    icon: "data:image/svg+xml;base64,",
    chains: ["solana:localnet"],
    accounts: [],
    features: {
      "standard:connect": {
        version: "1.0.0",
        connect: async () => {
          made.accounts = [{ address, publicKey: await publicKey(), chains: ["solana:localnet"], features: ["solana:signTransaction"] }];
          return { accounts: made.accounts };
        },
      },
      "solana:signTransaction": { version: "1.0.0", supportedTransactionVersions: versions, signTransaction },
    },
  };
  return made;
}

async function meddle({ transaction }) {
  const signedTransaction = transaction.slice();
  signedTransaction[signedTransaction.length - 1] ^= 1;
  return [{ signedTransaction }];
}

async function refuse() {
  throw new Error("The user said no.");
}

const wallets = [
  wallet("Test wallet"),
  wallet("Stranger", { address: "11111111111111111111111111111111" }),
  wallet("Meddler", { signTransaction: meddle }),
  wallet("Refuser", { signTransaction: refuse }),
  wallet("Unable", { versions: [] }),
];
const register = (api) => api.register(...wallets);
window.dispatchEvent(new CustomEvent("wallet-standard:register-wallet", { detail: register }));
window.addEventListener("wallet-standard:app-ready", ({ detail: api }) => register(api));
