/** A model's answer, as it comes. */
import { send } from "./api.js";
import { batches } from "./stream.js";

/** Ask a model for a chat completion, and tell what is new of it; resolves to its text, or to what has come of it. */
export async function fetchAnswer(body, signal, tell) {
  let text = "";
  const take = ({ error, choices: [choice] = [], weir }) => {
    if (error) throw new Error(error.message);
    if (weir) tell({ spans: weir.weight_versions[0], template: weir.prompt_template });
    if (choice?.finish_reason) tell({ finish_reason: choice.finish_reason });
    text += choice?.delta.content ?? "";
  };
  try {
    const reply = await send("v1/chat/completions", { ...body, stream: true }, {}, signal);
    for await (const chunks of batches(reply.body, (waits) => tell({ waits }))) {
      chunks.forEach(take);
      tell({ text });
    }
  } catch (error) {
    if (!signal.aborted) tell({ error });
  }
  tell({ ended: true });
  return text;
}
