// Improves pages that also work without it: one language at a time, buttons that copy, results while typing.
"use strict";

const KEY = "agent-vault-docs-language";

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function show(language) {
  for (const group of document.querySelectorAll(".tabs")) {
    const figures = [...group.querySelectorAll("figure")];
    const chosen = figures.find((one) => one.dataset.language === language) ?? figures[0];
    for (const figure of figures) {
      figure.hidden = figure !== chosen;
    }
    for (const button of group.querySelectorAll("[data-choose]")) {
      button.setAttribute("aria-pressed", String(button.dataset.choose === chosen.dataset.language));
    }
  }
}

function choose(event) {
  const button = event.currentTarget;
  const before = button.getBoundingClientRect().top;
  show(button.dataset.choose);
  // What is above may have changed its height: the button stays under the pointer.
  window.scrollBy(0, button.getBoundingClientRect().top - before);
  try {
    localStorage.setItem(KEY, button.dataset.choose);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

for (const group of document.querySelectorAll(".tabs")) {
  const bar = document.createElement("div");
  bar.className = "languages";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Language of the example");
  for (const figure of group.querySelectorAll("figure")) {
    const caption = figure.querySelector("figcaption");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.choose = figure.dataset.language;
    button.textContent = caption.textContent;
    button.addEventListener("click", choose);
    bar.append(button);
    caption.hidden = true;
  }
  group.prepend(bar);
}
show(remembered());

async function copy(event) {
  const button = event.currentTarget;
  const code = button.parentElement.querySelector("pre");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    // Without https a browser has no clipboard for pages: select, so that a key copies.
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

for (const code of document.querySelectorAll("main pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", copy);
  const frame = document.createElement("div");
  frame.className = "code";
  code.replaceWith(frame);
  frame.append(code, button);
}

// Links to an operation or object on the former single page of the reference lead to its own page.
if (location.pathname === "/docs/api" && location.hash) {
  const entry = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const link = entry?.querySelector("a");
  if (link) location.replace(link.href);
}

const field = document.querySelector("[role=search] input");
const found = document.createElement("div");
found.className = "found";
found.setAttribute("role", "status");
found.hidden = true;
field.form.append(found);
const SHOWN = 6;
let waiting, latest;

async function search() {
  const query = field.value.trim();
  latest = query;
  if (query === "") {
    found.hidden = true;
    return;
  }
  const shown = await results(query).catch(() => "The search does not answer. Press Enter to try it on its own page.");
  // A slower answer to an earlier query must not replace a newer one.
  if (latest !== query) return;
  found.replaceChildren(shown);
  found.hidden = false;
}

async function results(query) {
  const response = await fetch(`${field.form.action}?q=${encodeURIComponent(query)}`);
  if (!response.ok) throw new Error(response.statusText);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const list = page.querySelector(".results");
  for (const item of [...(list?.children ?? [])].slice(SHOWN)) item.remove();
  return list ?? page.querySelector("main p");
}

field.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(search, 200);
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.key === "Escape") {
    found.hidden = true;
  }
});
