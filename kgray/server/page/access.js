// Access: the key of this tab, what it may do, and the groups that it reaches.
import { html, useState, useStore } from "./view.js";
import { key, session, setKey } from "./api.js";
import { Dialog } from "./parts.js";
import { moment, shownExactly } from "./times.js";

/** Asks for a key where one is needed, and shows what it may do. */
export function Access({ isOpen, onClose }) {
  const { rights, needsKey, groups } = useStore(session);
  const [busy, setBusy] = useState(false);
  if (!isOpen && !needsKey) return null;
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    await setKey(new FormData(event.target).get("key").trim()).catch(() => {});
    setBusy(false);
    if (!session.value.needsKey) onClose();
  };
  return html`<${Dialog} title="Access" onClose=${() => (needsKey ? null : onClose())}>
    ${needsKey && html`<p class="fault" role="alert">${key() ? needsKey : "This server asks for a key."}</p>`}
    ${rights && html`<dl class="rights"><dt>Scopes</dt><dd>${rights.scopes.map((one) => html`<span class="tag">${one}</span>`)}</dd>
      <dt>Groups</dt><dd>${(groups || []).map((one) => html`<span class="tag">${one.group}</span>`)}</dd>
      <dt>Until</dt><dd>${rights.id ? (rights.expires_at ? shownExactly(moment(rights.expires_at)) : "no end") : "no key is needed on this machine"}</dd></dl>`}
    <form onSubmit=${submit}>
      <label>Key <input name="key" type="password" autocomplete="off" spellcheck=${false} placeholder="kg_…" required autofocus /></label>
      <p class="quiet">It stays in this tab, and goes to this server alone. <code>kgray keys add</code> makes one.</p>
      <footer>${key() && html`<button type="button" onClick=${() => setKey(null)}>Forget the key</button>`}
        <button class="main" disabled=${busy}>Use it</button></footer>
    </form>
  </${Dialog}>`;
}
