// Browsers refuse workers to pages that are opened as files. The search worker then runs in a frame,
// so that the site is complete without a web server. The theme loads a script of this name from a CDN
// unless there is one here.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #loaded;

    constructor(url) {
      super();
      this.#frame.hidden = true;
      this.#loaded = new Promise((resolve) => {
        this.#frame.onload = () => {
          const { contentWindow, contentDocument } = this.#frame;
          contentWindow.postMessage = (data) => this.#receive(data);
          const script = contentDocument.createElement("script");
          script.src = url;
          script.onload = resolve;
          contentDocument.body.append(script);
        };
      });
      document.body.append(this.#frame);
    }

    #receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    async postMessage(data) {
      await this.#loaded;
      this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
