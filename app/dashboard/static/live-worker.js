// Holds the one event connection of a browser, while any of its pages is visible.
"use strict";

const pages = new Set();
let source = null;

function follow(stream) {
  if (pages.size && !source) {
    source = new EventSource(stream);
    source.onmessage = (event) => {
      for (const page of pages) page.postMessage(event.data);
    };
  } else if (!pages.size && source) {
    source.close();
    source = null;
  }
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.open) pages.add(port);
    else pages.delete(port);
    follow(data.open);
  };
};
