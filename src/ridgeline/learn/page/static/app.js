// The page: the bar, the tabs, and the connection to a server.

import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { readContext, readHealth } from "page/context.js";
import { Trouble } from "page/controls.js";
import { KeyForm, Notice, Overview } from "page/entrance.js";
import { Home } from "page/home.js";
import { openSource } from "page/source.js";
import { readState, unreadIn, writeState } from "page/state.js";
import { TABS } from "page/tabs.js";

const FIELDS = Object.fromEntries(TABS.map((tab) => [tab.id, tab.fields ?? {}]));
const ASK_AGAIN = 1500; // milliseconds

/** Return the `context` once it is read, until then {waiting} or {locked}, and a function that retries. */
function useContextOf(source) {
  const [found, setFound] = useState({ waiting: "" });
  const [tries, setTries] = useState(0);
  useEffect(() => {
    let timer = 0;
    let left = false;
    const look = async () => {
      const next = await lookFor(source);
      if (left) return;
      setFound(next);
      if (next.waiting) timer = setTimeout(look, ASK_AGAIN);
    };
    look();
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [tries]);
  return [found, useCallback(() => setTries((count) => count + 1), [])];
}

async function lookFor(source) {
  try {
    return { context: await readContext(source) };
  } catch (error) {
    if (error.status === 401) return { locked: source.hasKey ? error.message : "" };
    return { waiting: (await readHealth()) ?? "The server cannot be reached." };
  }
}

const readAddress = () => ({
  ...readState(location.hash, FIELDS),
  unread: unreadIn(location.hash, FIELDS),
  bare: location.hash.length < 2,
});

/** Return the state in the address, the parts of it that cannot be read, and a function that changes the state. bare: whether the
 * address said nothing when it was opened. Steps between tabs go into the browser's history. */
function usePageState() {
  const [{ state, newer, unread, bare }, setRead] = useState(readAddress);
  const current = useRef(state);
  useEffect(() => {
    const read = () => {
      const next = readAddress();
      current.current = next.state;
      setRead(next);
    };
    addEventListener("popstate", read);
    return () => removeEventListener("popstate", read);
  }, []);
  const change = useCallback((make) => {
    const before = current.current;
    const next = make(before);
    current.current = next;
    setRead((read) => ({ state: next, newer: false, unread: [], bare: read.bare }));
    history[next.tab === before.tab ? "replaceState" : "pushState"](null, "", writeState(next, FIELDS));
  }, []);
  return { state, newer, unread, bare, change };
}

const NAMED = 3; // parts of an address that the message names

/** Return one line on the parts of an address that the page cannot read. */
function sayUnread(unread) {
  const more = unread.length > NAMED ? ` and ${unread.length - NAMED} more` : "";
  return `This page cannot read some settings in its address and ignores them: ${unread.slice(0, NAMED).join(", ")}${more}.`;
}

function Bar({ tabs, chosen, choose, children }) {
  return html`<header class="bar">
    <a class="skip" href="#content" onClick=${(event) => skip(event)}>Skip to the content</a>
    <span class="brand">
      <svg class="logo" viewBox="0 0 32 24" aria-hidden="true"><path d="M3 21 16 6h13" /></svg>Ridgeline
    </span>
    ${tabs.length > 0 && html`<${TabList} ...${{ tabs, chosen, choose }} />`}
    <div class="beside">${children}</div>
  </header>`;
}

function skip(event) {
  event.preventDefault(); // the address holds the state
  document.getElementById("content").focus();
}

/** Show the list of tabs, with the keys of WAI-ARIA's practices: arrows wrap around, Home and End go to the ends. */
function TabList({ tabs, chosen, choose }) {
  const list = useRef(null);
  const go = (event) => {
    const at = tabs.findIndex((tab) => tab.id === chosen);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = tabs.at(to % tabs.length);
    choose(tab.id);
    list.current.querySelector(`#tab-${tab.id}`).focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="Views" ref=${list} onKeyDown=${go}>
    ${tabs.map(
      (tab) => html`<button
        key=${tab.id}
        id=${`tab-${tab.id}`}
        role="tab"
        type="button"
        aria-selected=${tab.id === chosen ? "true" : "false"}
        aria-controls=${`panel-${tab.id}`}
        tabindex=${tab.id === chosen ? 0 : -1}
        onClick=${() => choose(tab.id)}
      >
        ${tab.title}
      </button>`,
    )}
  </div>`;
}

/** Show the open tab. Tabs that were opened before stay hidden with their contents; others are not created. */
function Panels({ tabs, chosen, context, source, state, change }) {
  const opened = useRef(new Set());
  opened.current.add(chosen);
  return tabs.map(
    (tab) => html`<section
      key=${tab.id}
      id=${`panel-${tab.id}`}
      class=${`panel ${tab.id}`}
      role="tabpanel"
      aria-labelledby=${`tab-${tab.id}`}
      hidden=${tab.id !== chosen}
    >
      ${opened.current.has(tab.id) &&
      html`<${Panel} ...${{ tab, context, source, change }} active=${tab.id === chosen} state=${state[tab.id]} />`}
    </section>`,
  );
}

function Panel({ tab, context, source, active, state, change }) {
  const set = useCallback((own) => change((all) => ({ ...all, [tab.id]: { ...all[tab.id], ...own } })), []);
  return html`<${tab.view} ...${{ context, source, active, state, set }} />`;
}

function Page() {
  const source = useMemo(openSource, []);
  const [found, lookAgain] = useContextOf(source);
  const { state, newer, unread, bare, change } = usePageState();
  const { context } = found;
  const tabs = context ? TABS.filter((tab) => tab.available(context)) : [];
  const chosen = (tabs.find((tab) => tab.id === state.tab) ?? tabs[0])?.id;
  const title = tabs.find((tab) => tab.id === chosen)?.title;
  const name = context?.models[0]?.id;
  useEffect(() => {
    document.title = [title, name, "Ridgeline"].filter(Boolean).join(" · ");
  }, [title, name]);
  const useKey = (key) => {
    source.setKey(key);
    lookAgain();
  };
  const tryOut = ({ tab, own }) => {
    change((all) => ({ ...all, tab, [tab]: { ...all[tab], ...own } }));
    document.getElementById(`tab-${tab}`).focus(); // the button goes with its home
  };
  return html`
    <${Bar} tabs=${tabs} chosen=${chosen} choose=${(tab) => change((all) => ({ ...all, tab }))}>
      ${source.served && source.hasKey && context &&
      html`<button type="button" class="quiet" onClick=${() => useKey("")}>Forget the key</button>`}
    <//>
    <main id="content" tabindex="-1">
      ${newer && html`<${Notice}>This address was made by a newer version of the page: some of its settings may be missing here.<//>`}
      ${unread.length > 0 && html`<div class="unread"><${Trouble}>${sayUnread(unread)}<//></div>`}
      ${found.waiting && html`<${Notice} busy>${found.waiting}<//>`}
      ${found.locked !== undefined && html`<${KeyForm} refused=${found.locked} onKey=${useKey} />`}
      ${context && tabs.length === 0 && html`<${Overview} context=${context} />`}
      ${bare && state.tab === null && tabs.length > 0 && html`<${Home} ...${{ tabs, context }} onTry=${tryOut} />`}
      ${context && html`<${Panels} ...${{ tabs, chosen, context, source, state, change }} />`}
    </main>
  `;
}

const page = document.getElementById("page");
page.replaceChildren();
render(html`<${Page} />`, page);
