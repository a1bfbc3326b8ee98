// Follows one session. The browser comes back by itself and says the last number it saw; where the server was away so
// long that the browser gave up, it is asked again here.

export class Feed {
  constructor(sessionId, after, { change, live, connected }) {
    this.sessionId = sessionId;
    this.after = after;
    this.hear = { change, live, connected };
    this.open();
  }

  open() {
    this.source = new EventSource(`/api/sessions/${encodeURIComponent(this.sessionId)}/events?views=true&after=${this.after}`);
    this.source.addEventListener("open", () => this.hear.connected(true));
    this.source.addEventListener("change", (event) => {
      const seq = Number(event.lastEventId);
      if (seq <= this.after) return;
      this.after = seq;
      this.hear.change(JSON.parse(event.data));
    });
    this.source.addEventListener("live", (event) => this.hear.live(JSON.parse(event.data)));
    this.source.addEventListener("error", () => {
      this.hear.connected(false);
      if (this.source.readyState === EventSource.CLOSED && !this.closed) {
        this.again = setTimeout(() => this.open(), 1000);
      }
    });
  }

  close() {
    this.closed = true;
    clearTimeout(this.again);
    this.source.close();
  }
}
