/** A conversation with a model, or with two next to each other; a job's tasks are asked and graded. */
import { html, useEffect, useRef, useState } from "../shell/dom.js";
import { JOBS, get, post, request } from "../data/api.js";
import { fetchAnswer } from "../data/answer.js";
import { usePolled } from "../data/poll.js";
import { Choice, Failure } from "../shell/parts.js";
import { setQuery } from "../shell/router.js";
import { Marks, Score, Versions } from "../samples/response.js";
import { verdictOf } from "../samples/samples.js";

const FIRST_BYTES = 2 ** 18; // of a task file
const SHOWN_TASKS = 50;
const SAMPLING = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any", placeholder: "1" }],
  ["top_p", "Top p", { min: 0, max: 1, step: "any", placeholder: "1" }],
  ["max_tokens", "Max tokens", { min: 1, step: 1, placeholder: "what fits" }],
];

export function Chat({ query }) {
  const { value, error } = usePolled(listModels, []);
  const models = value ?? [];
  const names = [query.model ?? models[0]?.[0], query.with].filter(Boolean);
  const jobId = names.join().match(/ftjob-[0-9a-f]+/)?.[0];
  const [turns, setTurns] = useState([]);
  const busy = turns.at(-1)?.answers.some(({ ended }) => !ended);
  const line = useRef(new AbortController()); // of the answers that come
  useEffect(() => {
    document.title = "Chat · Weir";
    return () => line.current.abort();
  }, []);
  const show = (shown) => {
    line.current.abort();
    line.current = new AbortController();
    setTurns(shown);
    return line.current.signal;
  };
  const blank = (model) => ({ index: new Map(models).get(model) ?? model, text: "", spans: [] });
  function ask(messages, task) {
    const before = task ? [] : turns;
    const signal = show([...before, { messages, task, answers: names.map(blank) }]);
    names.forEach(async (model, column) => {
      const tell = (changes) => signal === line.current.signal && setTurns((all) => changed(all, column, changes));
      const body = { model, messages: [...historyOf(before, column), ...messages], ...samplingOf(query) };
      const text = await fetchAnswer(body, signal, tell);
      if (task && text && !signal.aborted) tell(await graded({ job: jobId, item: task, model_sample: text }));
    });
  }
  return html`
    <h1>Chat</h1>
    <div class="bar filters asked-of">
      <${ModelChoice} label="Model" name="model" value=${names[0]} models=${models} />
      <${ModelChoice} label="Next to it" name="with" value=${query.with} models=${models} others=${[["", "nothing"]]} />
      ${SAMPLING.map(
        ([name, label, limits]) =>
          html`<label class="field"
            >${label}<input
              type="number"
              ...${limits}
              value=${query[name] ?? ""}
              onInput=${(event) => setQuery({ [name]: event.target.value })}
          /></label>`,
      )}
    </div>
    ${error && html`<${Failure} error=${error} />`}
    ${jobId && html`<${Tasks} key=${jobId} id=${jobId} onAsk=${(task) => ask(messagesOf(task), task)} />`}
    ${turns.map((turn, place) => html`<${Turn} key=${place} turn=${turn} />`)}
    <${Question} busy=${busy || !names.length} onAsk=${(content) => ask([{ role: "user", content }])}>
      ${busy && html`<button type="button" onClick=${() => line.current.abort()}>Stop</button>`}
      ${turns.length > 0 && html`<button type="button" class="quiet" onClick=${() => show([])}>New conversation</button>`}
    <//>
  `;
}

/** What can answer: id, name and group, jobs that train or have a result first. */
async function listModels(signal) {
  const [{ data: models }, { data: jobs }] = await Promise.all([
    get("v1/models", {}, signal),
    get(JOBS, { limit: 100 }, signal),
  ]);
  const nameOf = (id) => `${jobs.find((job) => job.id === id)?.weir.recipe.name ?? "job"} …${id.slice(-6)}`;
  const ofJobs = jobs
    .filter((job) => job.fine_tuned_model || job.status === "running")
    .map(({ id, status }) => [id, nameOf(id) + (status === "running" ? ", as it trains" : ""), "Jobs"]);
  const others = models.map(({ id, owned_by: owner }) => {
    const [, job, step] = id.match(/^ftckpt-(.*)-(\d+)$/) ?? [];
    if (job) return [`${job}@${step}`, `${nameOf(job)} at step ${step}`, `Checkpoints of ${nameOf(job)}`];
    return owner === "weir" ? [id, nameOf(id), "Jobs"] : [id, id, "Base models"];
  });
  return [...ofJobs, ...others.filter(([id]) => !ofJobs.some(([job]) => job === id))];
}

function ModelChoice({ label, name, value, models, others = [] }) {
  const isListed = !value || models.some(([id]) => id === value);
  const groups = Map.groupBy(models, ([, , group]) => group);
  const options = [...others, ...(isListed ? [] : [[value, value]]), ...groups];
  return html`<${Choice} ...${{ label, value, options }} onChange=${(id) => setQuery({ [name]: id })} />`;
}

const samplingOf = (query) =>
  Object.fromEntries(SAMPLING.flatMap(([name]) => (query[name] ? [[name, Number(query[name])]] : [])));

/** What was said to the model of a column: only what it has answered, and nothing to one that knows no chats. */
const historyOf = (turns, column) =>
  turns.flatMap(({ messages, answers }) => {
    const { text, template = null } = answers[column] ?? answers[0];
    return text && template === null ? [...messages, { role: "assistant", content: text }] : [];
  });

function changed(turns, column, changes) {
  const last = turns.at(-1);
  return [...turns.slice(0, -1), { ...last, answers: last.answers.with(column, { ...last.answers[column], ...changes }) }];
}

/** What the graders of a job say. */
const graded = (body) =>
  post("v1/fine_tuning/alpha/graders/run", body).then(({ weir: grade }) => ({ grade }), (error) => ({ error }));

const messagesOf = ({ messages, prompt }) => messages ?? [{ role: "user", content: prompt }];

/** The first tasks of a job, held-out ones if it has such, each to be asked at a click. */
function Tasks({ id, onAsk }) {
  const { value: tasks, error } = usePolled((signal) => firstTasks(id, signal), [id]);
  return html`<details class="panel tasks">
    <summary>Ask a task of the job, and have its graders grade the answer</summary>
    ${error && html`<${Failure} error=${error} what="The file of its tasks was deleted." />`}
    <ul>
      ${tasks?.map(
        (task) =>
          html`<li><button class="quiet" onClick=${() => onAsk(task)}>${messagesOf(task).at(-1).content}</button></li>`,
      )}
    </ul>
  </details>`;
}

async function firstTasks(id, signal) {
  const job = await get(`${JOBS}/${id}`, {}, signal);
  const file = job.validation_file || job.training_file || job.weir.recipe.tasks.sources[0].train;
  const path = `v1/files/${file}/content`;
  const reply = await request(path, { headers: { Range: `bytes=0-${FIRST_BYTES - 1}` }, signal });
  const bytes = await reply.arrayBuffer();
  const lines = new TextDecoder().decode(bytes).split("\n");
  const whole = lines.slice(0, bytes.byteLength < FIRST_BYTES ? SHOWN_TASKS : Math.min(SHOWN_TASKS, lines.length - 1));
  return whole.filter((line) => line.trim()).map((line) => JSON.parse(line));
}

function Turn({ turn: { messages, task, answers } }) {
  const place = useRef(null);
  useEffect(() => place.current.scrollIntoView(), [messages]);
  return html`<section class="turn" ref=${place}>
    ${messages.map(({ role, content }) => html`<h2>${role}</h2><pre>${content}</pre>`)}
    ${task && html`<p class="soft small">The answer is ${task.answer ?? task.reference_answer}.</p>`}
    <div class="cards">${answers.map((one) => html`<${Answer} answer=${one} />`)}</div>
  </section>`;
}

function Answer({ answer }) {
  const { index, text, ended, error } = answer;
  const { outcome, process } = answer.grade ?? {};
  const verdict = outcome && verdictOf({ index: 0, accuracy: outcome.kind === "graded" ? outcome.value : null });
  return html`<article class="panel card" aria-label=${`Answer of ${index}`} aria-busy=${!ended}>
    <header>
      <h3>${index}</h3>
      ${verdict && html`<span class="verdict ${verdict.kind}"><i aria-hidden="true">${verdict.symbol}</i>${verdict.text}</span>`}
      <span class="grow"></span>
      ${answer.finish_reason === "length" && html`<span class="soft small">cut off</span>`}
    </header>
    ${text && html`<div class="tokens">${text}</div>`}
    ${!ended && !text && html`<p class="soft" role="status">${answer.waits ?? "…"}</p>`}
    ${error && html`<${Failure} error=${error} />`}
    ${outcome && html`<${Score} name="outcome" score=${outcome} />`}
    ${process && html`<${Score} name="process" score=${process} />`}
    <${Marks} response=${answer} />
    ${answer.template && html`<p class="soft small">Each question stands alone: the model knows no chats.</p>`}
    <${Versions} spans=${answer.spans} />
  </article>`;
}

/** What is said next: Enter sends it. */
function Question({ busy, onAsk, children }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (!text.trim() || busy) return;
    onAsk(text);
    setText("");
  };
  return html`<form class="panel question" onSubmit=${send}>
    <label class="field"
      >Message; Shift and Enter begin a line<textarea
        rows="2"
        value=${text}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event)}
      ></textarea></label
    >
    <p class="bar"><button class="primary" disabled=${busy}>Send</button>${children}</p>
  </form>`;
}
