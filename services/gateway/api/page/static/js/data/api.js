/** The gateway's REST API, with the key of the session. */
import { forgetKey, savedKey } from "./session.js";

export const JOBS = "v1/fine_tuning/jobs";
const PAGE = 1000;

/** What the gateway refused, in its own words; `status` 0 if it did not answer. */
export class ApiError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** `path?name=value`, without what is undefined, null or empty. */
function withQuery(path, query = {}) {
  const given = Object.entries(query)
    .flatMap(([name, value]) => [value].flat().map((one) => [name, one]))
    .filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/**
 * A response that is not an error. A key that is refused is forgotten, which asks for another.
 * @param {string} path @param {RequestInit} [options]
 */
export async function request(path, { headers, ...options } = {}) {
  let reply;
  try {
    reply = await fetch(path, { ...options, headers: { Authorization: `Bearer ${savedKey()}`, ...headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The gateway does not answer.", 0);
  }
  if (reply.ok) return reply;
  if (reply.status === 401) forgetKey();
  const problem = await reply.json().catch(() => null);
  throw new ApiError(problem?.detail ?? `The gateway answered ${reply.status}.`, reply.status, problem?.error?.param);
}

export const get = async (path, query, signal) => (await request(withQuery(path, query), { signal })).json();

/** @param {string} path @param {object} [body] sent as JSON @param {object} [headers] @param {AbortSignal} [signal] */
export function send(path, body, headers, signal) {
  const content = body === undefined ? {} : { body: JSON.stringify(body), type: "application/json" };
  return request(path, {
    method: "POST",
    body: content.body,
    headers: { ...(content.type && { "Content-Type": content.type }), ...headers },
    signal,
  });
}

export const post = async (...sent) => (await send(...sent)).json();

export const remove = async (path, query) => (await request(withQuery(path, query), { method: "DELETE" })).json();

/** Upload a file of tasks; resolves to its description. */
export async function upload(file) {
  const form = new FormData();
  form.append("purpose", "fine-tune");
  form.append("file", file);
  return (await request("v1/files", { method: "POST", body: form })).json();
}

/** The pages of a list, each an array, the oldest first. */
export async function* pages(path, signal) {
  for (let after, more = true; more;) {
    const page = await get(path, { order: "asc", limit: PAGE, after }, signal);
    yield page.data;
    [after, more] = [page.last_id, page.has_more];
  }
}
