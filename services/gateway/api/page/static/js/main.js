/** The shell: who may look, which view is open, light or dark. */
import { html, render, useEffect, useState } from "./shell/dom.js";
import { Chat } from "./chat/chat.js";
import { Jobs } from "./jobs/jobs.js";
import { Job } from "./jobs/job.js";
import { KeyQuestion } from "./shell/keyQuestion.js";
import { href, useRoute } from "./shell/router.js";
import { Empty } from "./shell/parts.js";
import { forgetKey, savedKey, takeLinkedKey } from "./data/session.js";
import { Submit } from "./jobs/submit.js";
import { isDark, startTheme, toggleTheme } from "./shell/theme.js";

function View() {
  const { path, query } = useRoute();
  const [place, id, ...rest] = path;
  useEffect(() => scrollTo(0, 0), [path.join("/")]);
  if (place === "submit") return html`<${Submit} query=${query} />`;
  if (place === "chat") return html`<${Chat} query=${query} />`;
  if (place === "jobs" && id) return html`<${Job} key=${id} id=${id} path=${rest} query=${query} />`;
  if (place && place !== "jobs") return html`<${Empty}>There is no such view.<//><a class="button" href=${href([])}>All jobs</a>`;
  return html`<${Jobs} query=${query} />`;
}

function ThemeButton() {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const follow = () => setDark(isDark());
    addEventListener("theme-changed", follow);
    return () => removeEventListener("theme-changed", follow);
  }, []);
  return html`<button class="quiet" onClick=${toggleTheme} aria-label="Dark colours" aria-pressed=${dark}>
    ${dark ? "☾" : "☀"}
  </button>`;
}

function Shell() {
  const [key, setKey] = useState(savedKey());
  useEffect(() => {
    const ask = () => setKey(null);
    addEventListener("key-forgotten", ask);
    return () => removeEventListener("key-forgotten", ask);
  }, []);
  return html`
    <header class="top">
      <a class="brand" href=${href([])}><img src="static/icon.svg" alt="" width="24" height="24" />Weir</a>
      ${key && html`<nav><a href=${href([])}>Jobs</a><a href=${href(["chat"])}>Chat</a><a href=${href(["submit"])}>Submit</a></nav>`}
      <span class="grow"></span>
      ${key && html`<button class="quiet" onClick=${forgetKey}>Forget key</button>`}
      <${ThemeButton} />
    </header>
    <main id="view">${key ? html`<${View} />` : html`<${KeyQuestion} onKey=${setKey} />`}</main>
  `;
}

startTheme();
takeLinkedKey();
addEventListener("hashchange", () => takeLinkedKey() && location.reload());
const place = document.createElement("div");
document.body.prepend(place);
render(html`<${Shell} />`, place);
