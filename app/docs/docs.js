// Adds to the documents what they can do without: one language at a time, and buttons that copy.
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
