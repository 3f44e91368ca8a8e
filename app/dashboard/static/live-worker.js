// Holds the one event connection of a browser, while any of its pages is visible.
"use strict";

const pages = new Set();
let source = null;

function follow(stream) {
  if (pages.size && !source) {
    source = new EventSource(stream);
    const tell = (message) => {
      for (const page of pages) page.postMessage(message);
    };
    source.onmessage = (event) => tell(event.data);
    // After an interruption, such as a restart of the service, pages have missed something.
    let opened = false;
    source.onopen = () => {
      if (opened) tell(null);
      opened = true;
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
