/** Server-sent events by `fetch`: an EventSource cannot carry the key. */
import { ApiError, JOBS, pages, request } from "./api.js";

const PAUSE_MS = 1000;

/**
 * All events of a job: those until now page by page, then as they happen until it has ended.
 * A line that breaks goes on after the last event that came.
 * @param {string} jobId
 * @param {(events: object[]) => void} onEvents
 * @param {{signal: AbortSignal, live: boolean, onLine?: (up: boolean) => void}} options
 */
export async function followEvents(jobId, onEvents, { signal, live, onLine = () => {} }) {
  let last;
  const take = (events) => {
    last = events.at(-1)?.id ?? last;
    onEvents(events); // none, too: a job that is queued has told nothing
  };
  for await (const page of pages(`${JOBS}/${jobId}/events`, signal)) take(page);
  while (live && !signal.aborted) {
    await seen();
    const line = lineWhileSeen(signal);
    try {
      const headers = last ? { "Last-Event-ID": last } : {};
      const reply = await request(`${JOBS}/${jobId}/events?stream=true`, { headers, signal: line });
      onLine(true);
      for await (const events of batches(reply.body)) {
        take(events.filter((event) => event !== DONE));
        if (events.includes(DONE)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && [401, 404].includes(error.status)) throw error;
    }
    if (document.hidden) continue;
    onLine(false);
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

const DONE = Symbol("done");

/** Resolves as soon as a person can see the page. */
const seen = async () => {
  while (document.hidden) await new Promise((see) => addEventListener("visibilitychange", see, { once: true }));
};

/** Ends a request when the page is hidden: a browser has six lines to a host, and other tabs need them. */
function lineWhileSeen(signal) {
  const line = new AbortController();
  addEventListener("visibilitychange", () => line.abort(), { once: true, signal: line.signal });
  return AbortSignal.any([signal, line.signal]);
}

/** What each chunk of a stream completes: parsed events, or DONE. Signs of life may tell what is waited for. */
export async function* batches(body, onComment = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    yield blocks.flatMap(parse);
    blocks.filter((block) => block.startsWith(":")).forEach((block) => onComment(block.slice(1).trim()));
  }
}

function parse(block) {
  const data = block
    .split("\n")
    .find((line) => line.startsWith("data: "))
    ?.slice(6);
  if (data === undefined) return []; // a sign of life
  return [data === "[DONE]" ? DONE : JSON.parse(data)];
}
