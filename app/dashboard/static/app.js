// The script of all pages: passkeys, times in the reader's zone, live events. Pages work without it where possible.
"use strict";

const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
const text = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

// Passkeys

async function signed(kind, options) {
  options.challenge = bytes(options.challenge);
  for (const list of ["allowCredentials", "excludeCredentials"])
    options[list] = (options[list] ?? []).map((one) => ({ ...one, id: bytes(one.id) }));
  if (kind === "make") options.user.id = bytes(options.user.id);
  const made =
    kind === "make"
      ? await navigator.credentials.create({ publicKey: options })
      : await navigator.credentials.get({ publicKey: options });
  const response = {};
  for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"])
    if (made.response[name]) response[name] = text(made.response[name]);
  return JSON.stringify({ id: made.id, rawId: text(made.rawId), type: made.type, response, clientExtensionResults: {} });
}

async function send(path, fields) {
  const answer = await fetch(path, { method: "POST", body: fields, headers: { Accept: "application/json" } });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(found.error?.message ?? "The service did not answer. Try again.");
    throw Object.assign(error, { name: found.error?.code });
  }
  return found;
}

const UNDONE = "No passkey was made or used: the request was cancelled, timed out or is not possible on this device.";

async function submitted(form, button, kept) {
  const says = form.querySelector("[data-error]");
  says.hidden = true;
  button.disabled = true;
  try {
    const fields = new URLSearchParams(new FormData(form));
    if (form.dataset.passkey && !("plain" in button.dataset)) {
      const options = await send(form.dataset.options, fields);
      fields.set("credential", await signed(form.dataset.passkey, options));
    }
    const done = await send(button.hasAttribute("formaction") ? button.formAction : form.action, fields);
    if ("keep" in form.dataset) keep(done.location);
    if ("resume" in form.dataset) document.getElementById("resume").submit();
    else if (done.confirmed && kept) resume(kept, fields.get("csrf"));
    else location.assign(done.location);
  } catch (error) {
    // The confirmation has expired after five minutes. The reloaded page asks for another one.
    if (error.name === "step_up_required" && form.dataset.passkey === "make") return location.reload();
    says.textContent = error instanceof DOMException ? UNDONE : error.message.replace(/^[a-z_]+: /, "");
    says.hidden = false;
    button.disabled = false;
    // A code works only once, so the page offers only the link back.
    button.hidden = "returned" in form.dataset;
  }
}

document.addEventListener("submit", (event) => {
  if ("fetch" in event.target.dataset) {
    event.preventDefault();
    submitted(event.target, event.submitter ?? event.target.querySelector("button"));
  }
});

for (const form of document.querySelectorAll("form[data-token]")) {
  // Browsers do not send fragments, so the token is in no log. It is removed from the address as soon as it is read.
  const given = new URLSearchParams(`token=${location.hash.slice(1)}`);
  form.elements.token.value = given.get("token");
  form.elements.name.value ||= given.get("name") ?? "";
  history.replaceState(null, "", location.pathname);
}

// The company's sign-in: a form that needs a confirmation waits in this tab until the browser is back, then is resent.

function keep(address) {
  const form = document.getElementById("resume");
  const fields = [...new FormData(form)].filter(([name]) => name !== "csrf");
  const state = new URL(address).searchParams.get("state");
  const { method } = form;
  sessionStorage.setItem("resume", JSON.stringify({ state, method, path: form.getAttribute("action"), fields }));
}

function resume({ method, path, fields }, csrf) {
  if (method === "get") {
    location.assign(path);
    return;
  }
  const form = document.createElement("form");
  form.method = "post";
  form.action = path;
  for (const [name, value] of [...fields, ["csrf", csrf]]) {
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name, value });
    form.append(input);
  }
  document.body.append(form);
  form.submit();
}

for (const form of document.querySelectorAll("form[data-returned]")) {
  const kept = JSON.parse(sessionStorage.getItem("resume"));
  sessionStorage.removeItem("resume");
  // The code is used once, and removed from the address and the history.
  history.replaceState(null, "", location.pathname);
  const mine = kept?.state === form.elements.state.value ? kept : null;
  submitted(form, form.querySelector("button"), mine);
}

// Times

const two = (number) => String(number).padStart(2, "0");

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const elapsed = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
const dated = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const withYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

// Shows a time of the last or next day as `5 min ago`, others as `25 Nov, 09:34` or, in another year, `25 Nov 2025`.
function relative(one) {
  const at = new Date(one.dateTime);
  const seconds = Math.round((at - Date.now()) / 1000);
  const size = Math.abs(seconds);
  const [unit, length] = size < 60 ? ["second", 1] : size < 3600 ? ["minute", 60] : ["hour", 3600];
  if (size < 86400) one.textContent = elapsed.format(Math.trunc(seconds / length), unit).replace(".", "");
  else one.textContent = (at.getFullYear() === new Date().getFullYear() ? dated : withYear).format(at);
}

function localTimes(root) {
  for (const one of root.querySelectorAll("time[datetime]:not([data-local])")) {
    const at = new Date(one.dateTime);
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const exact = "ms" in one.dataset ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "";
    const minute = `${two(at.getHours())}:${two(at.getMinutes())}`;
    const shown = `${day} ${minute}:${two(at.getSeconds())}${exact}`;
    one.dataset.local = "";
    // The exact time and its zone are in the title, because the elapsed time is easier to read.
    one.title = `${shown} ${zone}, ${one.title}`;
    if (exact) one.textContent = shown;
    else if ("clock" in one.dataset) one.textContent = minute;
    else relative(one);
  }
  // The rows of the feed are grouped by the reader's days.
  const named = new Intl.DateTimeFormat("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
  for (const list of root.querySelectorAll("[data-days]:not([data-local])")) {
    list.dataset.local = "";
    let heading = list.querySelector(".day");
    let shown = null;
    for (const row of [...list.children]) {
      if (row.matches(".day")) {
        row.remove();
        continue;
      }
      const day = named.format(new Date(row.querySelector("time").dateTime)).replace(",", "");
      if (day !== shown) {
        heading = heading.cloneNode(true);
        heading.firstElementChild.textContent = shown = day;
        row.before(heading);
      }
    }
  }
}
localTimes(document);
document.addEventListener("htmx:afterSettle", () => localTimes(document));
setInterval(() => document.querySelectorAll("time[data-local]:not([data-ms], [data-clock])").forEach(relative), 30_000);

// Do not replace a part of the page while the reader selects or types something in it.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (!event.target.matches("[hx-trigger=live]")) return;
  const busy = event.target.querySelector('input[name="wallet_id"]:checked, input:focus, select:focus, details[open]');
  if (busy) event.preventDefault();
});

// The service checks fields as they are typed. Announce invalid ones to screen readers.
document.addEventListener("htmx:afterSettle", () => {
  for (const one of document.querySelectorAll(".policy :is(input, textarea)[aria-describedby]")) {
    const says = document.getElementById(one.getAttribute("aria-describedby").split(" ").pop());
    if (says?.classList.contains("wrong")) one.setAttribute("aria-invalid", "true");
    else one.removeAttribute("aria-invalid");
  }
});

// Secrets that are shown once. Neither a reload, which would also resend the form, nor the back button may show them again.

for (const one of document.querySelectorAll("[data-once]")) {
  history.replaceState(null, "", one.dataset.once);
  window.addEventListener("pagehide", () => one.remove());
}

// Small conveniences

document.addEventListener("click", async (event) => {
  const copied = event.target.closest("[data-copy]");
  if (copied) {
    await navigator.clipboard.writeText(copied.dataset.copy);
    copied.textContent = "Copied";
  }
  if (event.target.matches("[data-select]")) event.target.select();
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]"))
    for (const one of document.querySelectorAll('input[name="wallet_id"]')) one.checked = event.target.checked;
});

// A link to a field focuses it, as `/` does from a page without a search.
if (location.hash === "#q") document.getElementById("q")?.focus();

// A single key presses a row's button while the focus is in the row. Elsewhere, a letter must not decide anything.
document.addEventListener("keydown", (event) => {
  const other = event.ctrlKey || event.metaKey || event.altKey || event.repeat;
  if (other || event.target.matches("input, select, textarea")) return;
  if (event.key === "?") return document.getElementById("keys")?.showModal();
  if (event.key === "/") {
    event.preventDefault();
    const field = document.querySelector('main input[type="search"]');
    return field ? field.focus() : location.assign(`${document.querySelector(".brand").href}#q`);
  }
  const row = event.target.closest("tr");
  row?.querySelector(`button[aria-keyshortcuts="${CSS.escape(event.key)}"]`)?.click();
});

// Live events: one connection per browser, shared by its visible pages. Without shared workers, each visible page has a
// connection of its own. A live part of a page has the htmx trigger `live`.

const waiting = new Set();
const [SOON, LATER] = [50, 500]; // milliseconds
let timer = null;
let patient = false;
let refreshed = -LATER;

function arrived(message) {
  const { event, wallets, reached } = JSON.parse(message);
  // A connection's first message is the current progress. If it is above the page's own, the page has missed changes.
  if (!wallets && reached <= Number(progress)) return;
  const hint = wallets && !event;
  for (const one of wallets ?? ["*"]) waiting.add(one);
  if (timer && patient && !hint) {
    clearTimeout(timer);
    timer = null;
  }
  if (timer) return;
  // A hint without an event is delayed, because an event may follow. After a pause, the first event is shown soon, and the
  // events of a burst are shown together.
  patient = hint;
  timer = setTimeout(refresh, patient ? LATER : Math.max(SOON, refreshed + LATER - performance.now()));
}

function refresh() {
  timer = null;
  refreshed = performance.now();
  const all = waiting.has("*");
  for (const part of document.querySelectorAll("[hx-trigger=live]"))
    if (all || !part.dataset.wallet || waiting.has(part.dataset.wallet)) htmx.trigger(part, "live");
  waiting.clear();
}

function connect(stream, worker) {
  if ("SharedWorker" in window) {
    const { port } = new SharedWorker(worker, { name: stream });
    port.onmessage = (event) => arrived(event.data);
    port.postMessage({ open: stream });
    return () => port.postMessage({ close: true });
  }
  const source = new EventSource(stream);
  source.onmessage = (event) => arrived(event.data);
  return () => source.close();
}

const { stream, worker, progress } = document.body.dataset;
if (stream && document.querySelector("[hx-trigger=live]")) {
  let disconnect = null;
  const follow = () => {
    const visible = document.visibilityState === "visible";
    if (visible && !disconnect) {
      disconnect = connect(stream, worker);
    } else if (!visible && disconnect) {
      disconnect();
      disconnect = null;
    }
  };
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", () => disconnect && disconnect());
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) {
      disconnect = null;
      follow();
    }
  });
  follow();
}
