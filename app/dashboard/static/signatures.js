// Signs transactions with this browser's wallets, which register by the Wallet Standard. Also reads signed files.
"use strict";

const wallets = new Set();
const CONNECT = "standard:connect";
const SIGN = "solana:signTransaction";

const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const toBase64 = (found) => btoa(Array.from(found, (byte) => String.fromCharCode(byte)).join(""));

// The signed message: the bytes after the signatures. There are fewer than 128, so their count takes one byte.
const message = (transaction) => transaction.slice(1 + 64 * transaction[0]);
const same = (one, other) => one.length === other.length && one.every((byte, place) => byte === other[place]);

function usable(wallet, transaction) {
  const version = message(transaction)[0] & 0x80 ? 0 : "legacy";
  return CONNECT in wallet.features && wallet.features[SIGN]?.supportedTransactionVersions.includes(version);
}

async function signed(wallet, transaction, { signer, chain }) {
  const connected = await wallet.features[CONNECT].connect();
  const account = [...connected.accounts, ...wallet.accounts].find((one) => one.address === signer);
  if (!account) throw new Error(`${wallet.name} does not offer the account ${signer}, which must sign.`);
  const [made] = await wallet.features[SIGN].signTransaction({ account, chain, transaction });
  if (!same(message(transaction), message(made.signedTransaction)))
    throw new Error(`${wallet.name} changed the transaction, so it cannot be sent. Sign it with the command line.`);
  return toBase64(made.signedTransaction);
}

async function use(wallet, place) {
  const says = place.querySelector("[data-says]");
  const form = place.querySelector("[data-wallets]");
  says.textContent = `Confirm it in ${wallet.name}.`;
  says.className = "notice";
  says.hidden = false;
  try {
    form.elements.transaction.value = await signed(wallet, fromBase64(place.dataset.transaction), place.dataset);
    form.requestSubmit();
  } catch (error) {
    says.textContent = error.message || `${wallet.name} did not sign.`;
    says.classList.add("bad");
  }
}

function offer() {
  for (const place of document.querySelectorAll("[data-transaction]")) {
    const form = place.querySelector("[data-wallets]");
    for (const old of form.querySelectorAll("button")) old.remove();
    for (const wallet of wallets)
      if (usable(wallet, fromBase64(place.dataset.transaction))) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "primary";
        button.textContent = `Sign with ${wallet.name}`;
        button.addEventListener("click", () => use(wallet, place));
        form.append(button);
      }
  }
  const none = document.querySelector("[data-no-wallet]");
  if (none) none.hidden = document.querySelector("[data-wallets] button") !== null;
}

const api = Object.freeze({
  register(...given) {
    for (const wallet of given) wallets.add(wallet);
    offer();
    return () => {
      for (const wallet of given) wallets.delete(wallet);
      offer();
    };
  },
});

// A wallet loaded before this script waits for the event `app-ready`. A wallet loaded later sends `register-wallet`.
window.addEventListener("wallet-standard:register-wallet", ({ detail: register }) => register(api));
window.dispatchEvent(new CustomEvent("wallet-standard:app-ready", { detail: api }));

for (const input of document.querySelectorAll("input[data-into]"))
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file) document.getElementById(input.dataset.into).value = (await file.text()).trim();
  });
