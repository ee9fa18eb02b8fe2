/** The question for the API key. */
import { html, useState } from "./dom.js";
import { JOBS, get } from "../data/api.js";
import { forgetKey, saveKey } from "../data/session.js";

export function KeyQuestion({ onKey }) {
  const [error, setError] = useState(null);
  async function open(event) {
    event.preventDefault();
    const given = new FormData(event.target);
    const key = given.get("key").trim();
    try {
      saveKey(key, given.get("remember") === "on");
      await get(JOBS, { limit: 1 });
      onKey(key);
    } catch (refused) {
      forgetKey();
      setError(refused.status === 401 ? "The gateway does not know this key." : refused.message);
    }
  }
  return html`
    <form class="panel key" onSubmit=${open}>
      <h1>Weir</h1>
      <p class="soft">
        Reinforcement learning for language models. Jobs, curves and every sample are shown to holders of an API key.
      </p>
      <label>API key<input name="key" type="password" required autocomplete="current-password" autofocus /></label>
      <label class="tick"><input name="remember" type="checkbox" />Remember it in this browser</label>
      ${error && html`<p role="alert" class="error">${error}</p>`}
      <button class="primary">Open</button>
      <p class="soft small">
        One of <code>WEIR_API_KEYS</code>; <code>weir up</code> writes one into <code>.weir/stack.json</code>.
      </p>
    </form>
  `;
}
