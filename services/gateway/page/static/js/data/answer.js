/** A model's answer, as it comes. */
import { send } from "./api.js";
import { batches } from "./stream.js";

/** Ask a model for a chat completion, and tell what is new of it; resolves to its text, or to what has come of it. */
export async function fetchAnswer(body, signal, tell) {
  const sampled = [];
  let text = "";
  const take = ({ error, choices: [choice] = [], weir }) => {
    if (error) throw new Error(error.message);
    if (weir) tell({ spans: weir.weight_versions[0], template: weir.prompt_template });
    if (choice?.finish_reason) tell({ finish_reason: choice.finish_reason });
    text += choice?.delta.content ?? "";
    sampled.push(...(choice?.logprobs?.content ?? []));
  };
  try {
    const reply = await send("v1/chat/completions", { ...body, stream: true, logprobs: true }, {}, signal);
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

/** The piece of a text that each token stands for: the last part of a character, told as U+FFFD, has all of it. */
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
