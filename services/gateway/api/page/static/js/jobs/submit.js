/** Submit a job: a recipe as text, its task files, and what it asks for before it is sent. */
import { html, useEffect, useState } from "../shell/dom.js";
import { JOBS, get, post, upload } from "../data/api.js";
import { usePolled } from "../data/poll.js";
import { ago } from "../shell/format.js";
import { go, href } from "../shell/router.js";
import { Choice, Facts, useWork } from "../shell/parts.js";
import { toml } from "./toml.js";

const example = (model) => `name = "my-first"

[model]
path = ${JSON.stringify(model)}
dtype = "float32"
prompt_template = "{prompt}"  # leave it out for a model with a chat template
max_context = 96

[tasks]
train = "train.jsonl"

[rollout]
group_size = 8
sampling = { max_tokens = 48 }

[algorithm]
advantage = "grpo"

[training]
steps = 60
`;

export function Submit({ query }) {
  const { value: models } = usePolled((signal) => get("v1/models", {}, signal), []);
  const { value: files } = usePolled((signal) => get("v1/files", {}, signal), []);
  const { value: recipes } = usePolled((signal) => get("v1/page/recipes", {}, signal), []);
  const { value: like, error: unlike } = usePolled(
    async (signal) => query.like && get(`${JOBS}/${query.like}`, {}, signal),
    [query.like],
  );
  const [text, setText] = useState("");
  useEffect(() => {
    if (like) open(toml(withFiles(like)));
  }, [like]);
  const [found, setFound] = useState(null);
  const checked = found?.text === text ? found : null;
  const { busy, error, attempt } = useWork();
  useEffect(() => void (document.title = "Submit · Weir"), []);

  const check = (text) =>
    attempt(async () => setFound({ ...(await post("v1/page/recipe", { text })), text, key: randomKey() }));
  const open = (text) => {
    setText(text);
    if (text) check(text);
  };
  const examples = {
    "": "",
    "my first": example(models?.data[0]?.id ?? "MODEL"),
    ...Object.fromEntries(recipes?.data.map(({ name, text, recipe }) => [name, text ?? toml(recipe)]) ?? []),
  };
  const ids = recipes?.data.find(({ name }) => examples[name] === text)?.files ?? {};
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
    <form
      class="panel"
      onSubmit=${(event) => {
        event.preventDefault();
        check(text);
      }}
    >
      <h2>1. Recipe</h2>
      <p class="bar">
        <label class="field"
          >Open a TOML or JSON file<input
            type="file"
            accept=".toml,.json"
            onChange=${async (event) => open(await event.target.files[0].text())}
        /></label>
        <${Choice}
          label="or begin with an example"
          value=${Object.keys(examples).find((name) => examples[name] === text)}
          options=${Object.keys(examples).map((name) => [name, name || "choose one"])}
          onChange=${(name) => open(examples[name])}
        />
      </p>
      <label for="recipe-text">or paste it (a job's own is under its Recipe tab)</label>
      <textarea
        id="recipe-text"
        class="code"
        rows="16"
        spellcheck="false"
        placeholder=${example("MODEL")}
        required
        value=${text}
        onInput=${(event) => setText(event.target.value)}
      ></textarea>
      <p class="bar">
        <button class=${checked ? "" : "primary"} disabled=${busy || !text.trim()}>Check and plan</button>
      </p>
    </form>
    ${
      (error ?? unlike) &&
      html`<div role="alert" class="error lines">${(error ?? unlike).message.split("\n").map((line) => html`<p>${line}</p>`)}</div>`
    }
    ${
      checked &&
      html`<form class="panel" onSubmit=${submit}>
        <h2>2. Plan</h2>
        <${Facts} className="settings plan" facts=${checked.plan.map(({ name, value }) => [name, value])} />
        <p class="soft small">
          This is arithmetic. What fits on which GPU, and how long a step takes, is said by <code>weir plan</code> on a
          machine with the learner's code. The gateway checks the model's folder and Redis' memory when the job is sent.
        </p>
        <h2>3. Model and tasks</h2>
        <label class="field"
          >Model<input name="model" list="models" required value=${checked.recipe.model.path} /><datalist id="models"
            >${models?.data.map(({ id }) => html`<option value=${id}></option>`)}</datalist
          ></label
        >
        ${trainFiles(checked.recipe.tasks).map(
          ([name, path]) =>
            html`<${TaskFile}
              key=${name}
              name=${`train${name}`}
              label=${`Tasks to train on${name && `: ${name}`}`}
              path=${path}
              ids=${ids}
              files=${files?.data}
            />`,
        )}
        ${
          checked.recipe.tasks.held_out &&
          html`<${TaskFile}
            name="held_out"
            label="Held-out tasks"
            path=${checked.recipe.tasks.held_out}
            ids=${ids}
            files=${files?.data}
          />`
        }
        <p class="bar">
          <button class="primary" disabled=${busy}>${busy ? "Sending…" : `Submit ${checked.recipe.name}`}</button>
        </p>
      </form>`
    }
  </div>`;
}

/** A job's recipe that names the job's own model and task files. */
function withFiles({ model: path, training_file: train, validation_file: held_out, weir: { recipe } }) {
  const tasks = { ...recipe.tasks, ...(train && { train }), ...(held_out && { held_out }) };
  return { ...recipe, model: { ...recipe.model, path }, tasks };
}

/** The files to train on, each after the name of its source. */
const trainFiles = ({ train, sources = [] }) =>
  sources.length ? sources.map((source) => [source.name, source.train]) : [["", train]];

/** A file that the gateway has, or one to upload. */
function TaskFile({ name, label, path, ids, files = [] }) {
  // Files of different tasks have the same name, such as train.jsonl. An id is made of the content.
  const found = files.find(({ id }) => id === path || id === ids[path]);
  const [id, setId] = useState(null);
  const chosen = id ?? found?.id ?? "";
  return html`<label class="field"
      >${label}, as the recipe says ${path}<select
        name=${`${name}_id`}
        onChange=${(event) => setId(event.target.value)}
      >
        <option value="" selected=${!chosen}>upload a file</option>
        ${files.map(
          (one) =>
            html`<option value=${one.id} selected=${one.id === chosen}>
              ${one.filename}, ${one.tasks} tasks, ${ago(one.created_at)}
            </option>`,
        )}
      </select></label
    >
    ${
      !chosen &&
      html`<label class="field">${label}: new file<input type="file" name=${name} accept=".jsonl" required /></label>`
    }`;
}

/** The REST body: the files' ids and the model stand beside the recipe, not in it. */
async function bodyOf({ tasks: { train, held_out, sources = [], ...tasks }, model: { path, ...model }, ...tables }, form) {
  const idOf = async (name) => form.get(`${name}_id`) || (await upload(form.get(name))).id;
  const body = { model: form.get("model") };
  if (train) body.training_file = await idOf("train");
  if (held_out) body.validation_file = await idOf("held_out");
  const uploaded = [];
  for (const source of sources) uploaded.push({ ...source, train: await idOf(`train${source.name}`) });
  return { ...body, recipe: { ...tables, tasks: { ...tasks, sources: uploaded }, model } };
}

/** Not `randomUUID`, which plain HTTP does not have. */
const randomKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
