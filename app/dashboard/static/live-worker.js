// Holds the one event connection of a browser, while any of its pages is visible.
"use strict";

const pages = new Set();
const PAUSE = 2000; // milliseconds
let source = null;
let interrupted = false;

function follow(stream) {
  if (pages.size && !source) {
    source = new EventSource(stream);
    const tell = (message) => {
      for (const page of pages) page.postMessage(message);
    };
    source.onmessage = (event) => tell(event.data);
    // After an interruption, such as a restart of the service, pages have missed something.
    source.onopen = () => {
      if (interrupted) tell(null);
      interrupted = false;
    };
    // Browsers try again by themselves, but some give up for good after a certain kind of failure.
    source.onerror = () => {
      interrupted = true;
      source.close();
      source = null;
      setTimeout(() => follow(stream), PAUSE);
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
