// Holds the only event connection of a browser while any of its pages is visible.
"use strict";

const pages = new Set();
const PAUSE = 2000; // milliseconds
let source = null;
let reached = null;

function follow(stream) {
  if (pages.size && !source) {
    source = new EventSource(stream);
    source.onmessage = (event) => {
      reached = JSON.parse(event.data).reached;
      for (const page of pages) page.postMessage(event.data);
    };
    // Browsers reconnect by themselves, but some give up permanently after certain failures.
    source.onerror = () => {
      close();
      setTimeout(() => follow(stream), PAUSE);
    };
  } else if (!pages.size && source) close();
}

function close() {
  source.close();
  source = null;
  reached = null;
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.open) {
      pages.add(port);
      if (reached !== null) port.postMessage(JSON.stringify({ reached }));
    } else pages.delete(port);
    follow(data.open);
  };
};
