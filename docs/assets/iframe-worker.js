// The search runs in a worker, and browsers refuse workers on pages that are opened as files. There, run its script in a
// hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.deliver(this, data);
      this.inner.importScripts = (...urls) => Promise.all(urls.map((one) => this.load(one)));
      this.load(new URL(url, document.baseURI).href).then(() => {
        this.loaded = true;
        this.waiting.forEach((data) => this.deliver(this.inner, data));
      });
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.body.appendChild(script);
      });
    }
    deliver(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      target.onmessage?.(event);
    }
    postMessage(data) {
      if (this.loaded) this.deliver(this.inner, data);
      else this.waiting.push(data);
    }
    terminate() {
      this.inner.frameElement?.remove();
    }
  };
}
