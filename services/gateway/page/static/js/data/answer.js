/** A model's answer, as it comes. */
import { request } from "./api.js";
import { batches } from "./stream.js";

/**
 * Ask a model, and tell what is new of its answer. One that is stopped or breaks keeps what has come.
 * @param {object} body of the route of chat completions @param {(changes: object) => void} tell
 * @returns {Promise<string>} all of its text
 */
export async function fetchAnswer(body, signal, tell) {
  const sampled = [];
  let text = "";
  const take = ({ error, choices: [choice] = [], weir }) => {
    if (error) throw new Error(error.message);
    if (weir?.weight_versions) tell({ spans: weir.weight_versions[0] });
    if (choice?.finish_reason) tell({ finish_reason: choice.finish_reason });
    text += choice?.delta.content ?? "";
    sampled.push(...(choice?.logprobs?.content ?? []));
  };
  try {
    const reply = await request("v1/chat/completions", {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, logprobs: true }),
    });
    for await (const chunks of batches(reply.body, (waits) => tell({ waits }))) {
      chunks.forEach(take);
      tell({ text });
    }
  } catch (error) {
    if (!signal.aborted) tell({ error });
  }
  const pieces = placed(text, sampled.map(({ token }) => token));
  tell({ tokens: pieces, behavior_logprobs: sampled.map(({ logprob }) => logprob), ended: true });
  return text;
}

/**
 * The piece of a text that each token stands for: none if it is a part of a character, but for the last part, which
 * has all of it, or if it is behind the text, as what ends it is.
 * @param {string} text @param {string[]} tokens each by itself; a part of a character as U+FFFD
 */
export function placed(text, tokens) {
  const pieces = [];
  let at = 0;
  for (const token of tokens) {
    const found = token.includes("\ufffd") ? -1 : text.indexOf(token, at);
    if (found > at && pieces.length) pieces.push(pieces.pop() + text.slice(at, found));
    pieces.push(found < 0 ? "" : token);
    if (found >= 0) at = found + token.length;
  }
  return pieces.length ? [...pieces.slice(0, -1), pieces.at(-1) + text.slice(at)] : [];
}
