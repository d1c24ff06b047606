// Opened from disk, a page may not start a worker from a file. This stands in for one: a hidden frame that loads the
// same script, with messages passed both ways. It makes the site's search work without a server.
(function () {
  "use strict";
  if (location.protocol !== "file:") return;
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<script>self.importScripts = () => {}; self.postMessage = (m) => parent.postMessage(m, '*');</script>" +
        "<script src='" + new URL(url, location.href).href + "'></script>";
      this.frame.onload = () => {
        const target = this.frame.contentWindow, ready = this.waiting;
        this.waiting = null;
        ready.forEach((m) => target.dispatchEvent(new MessageEvent("message", { data: m })));
      };
      window.addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const told = new MessageEvent("message", { data: event.data });
        if (this.onmessage) this.onmessage(told);
        this.dispatchEvent(told);
      });
      document.body.appendChild(this.frame);
    }
    postMessage(m) {
      if (this.waiting) this.waiting.push(m);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: m }));
    }
    terminate() { this.frame.remove(); }
  };
})();
