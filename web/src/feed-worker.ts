// The shared worker of all tabs.
import { FeedConnection, type FeedRequest } from "./feed-connection";

const connection = new FeedConnection();

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0]!;
  const handle = connection.subscribe((message) => port.postMessage(message));
  port.onmessage = (received: MessageEvent<FeedRequest>) => handle(received.data);
};
