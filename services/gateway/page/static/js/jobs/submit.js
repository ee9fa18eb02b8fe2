/** Submit a job: a recipe as text, its task files, and what it asks for before it is sent. */
import { html, useEffect, useState } from "../shell/dom.js";
import { JOBS, post, upload } from "../data/api.js";
import { go, href } from "../shell/router.js";

const EXAMPLE = `name = "my-first"

[model]
path = "examples/arithmetic/base-model"

[tasks]
train = "train.jsonl"
…`;

export function Submit() {
  const [text, setText] = useState("");
  const [checked, setChecked] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => void (document.title = "Submit · Weir"), []);

  async function attempt(work) {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (refused) {
      setError(refused);
    }
    setBusy(false);
  }
  const change = (value) => {
    setText(value);
    setChecked(null);
  };
  const open = async (event) => change(await event.target.files[0].text());
  const check = (event) => {
    event.preventDefault();
    attempt(async () => setChecked({ ...(await post("v1/page/recipe", { text })), key: randomKey() }));
  };
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    attempt(async () => {
      const job = await post(JOBS, await bodyOf(checked.recipe, form), { "Idempotency-Key": checked.key });
      go(href(["jobs", job.id]));
    });
  };
  return html`<div class="submit">
    <h1>Submit a job</h1>
    <form class="panel" onSubmit=${check}>
      <h2>1. Recipe</h2>
      <label class="field">Open a TOML or JSON file<input type="file" accept=".toml,.json" onChange=${open} /></label>
      <label for="recipe-text">or paste it</label>
      <textarea
        id="recipe-text"
        class="code"
        rows="16"
        spellcheck="false"
        placeholder=${EXAMPLE}
        required
        value=${text}
        onInput=${(event) => change(event.target.value)}
      ></textarea>
      <p class="bar">
        <button class=${checked ? "" : "primary"} disabled=${busy || !text.trim()}>Check and plan</button>
      </p>
    </form>
    ${
      error &&
      html`<div role="alert" class="error lines">${error.message.split("\n").map((line) => html`<p>${line}</p>`)}</div>`
    }
    ${
      checked &&
      html`<form class="panel" onSubmit=${submit}>
        <h2>2. Plan</h2>
        <dl class="settings plan">
          ${checked.plan.map(
            ({ name, value }) =>
              html`<div>
                <dt>${name}</dt>
                <dd>${value}</dd>
              </div>`,
          )}
        </dl>
        <p class="soft small">
          This is arithmetic. What fits on which GPU, and how long a step takes, is said by <code>weir plan</code> on a
          machine with the learner's code. The gateway checks the model's folder and Redis' memory when the job is sent.
        </p>
        <h2>3. Model and tasks</h2>
        <label class="field"
          >Model, a folder below the gateway's model roots<input
            name="model"
            required
            value=${checked.recipe.model.path}
        /></label>
        <${TaskFile} name="train" label="Tasks to train on" path=${checked.recipe.tasks.train} required />
        ${
          checked.recipe.tasks.held_out &&
          html`<${TaskFile} name="held_out" label="Held-out tasks" path=${checked.recipe.tasks.held_out} required />`
        }
        <p class="bar">
          <button class="primary" disabled=${busy}>${busy ? "Sending…" : `Submit ${checked.recipe.name}`}</button>
        </p>
      </form>`
    }
  </div>`;
}

const TaskFile = ({ name, label, path, required }) => html`
  <label class="field"
    >${label}<input type="file" name=${name} accept=".jsonl" required=${required} /><span class="soft small"
      >JSON Lines; the recipe says ${path}</span
    ></label
  >
`;

/** The REST body: the files' ids and the model stand beside the recipe, not in it. */
async function bodyOf({ tasks, model: { path, ...model }, ...tables }, form) {
  const body = { model: form.get("model"), training_file: (await upload(form.get("train"))).id };
  if (tasks.held_out) body.validation_file = (await upload(form.get("held_out"))).id;
  return { ...body, recipe: { ...tables, model } };
}

/** Not `randomUUID`, which plain HTTP does not have. */
const randomKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
