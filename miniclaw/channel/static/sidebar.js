/* The list of chats, kept up to date by `session.updated`. */

import { getSessions } from "./api.js";
import { $, h } from "./dom.js";
import { language, t } from "./i18n.js";

const DAY_MS = 86_400_000;

export class Sidebar {
  #sessions = new Map();
  #current = null;
  #fresh = new Set();

  constructor() {
    document.addEventListener("miniclaw:language", () => this.#draw());
    $("menu").addEventListener("click", () => this.toggle(true));
    $("close-menu").addEventListener("click", () => this.toggle(false));
    $("shade").addEventListener("click", () => this.toggle(false));
    addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(false));
  }

  async load() {
    const sessions = await getSessions();
    this.#sessions = new Map(sessions.map((session) => [session.session_id, session]));
    this.#draw();
  }

  /** Take a `session.updated`. */
  update(id, changes) {
    const before = this.#sessions.get(id);
    const session = { ...before, session_id: id, updated_at: Date.now() / 1_000, ...changes };
    if (!changes.title) session.title = before?.title || "";
    if (before?.phase === "running" && session.phase === "idle" && id !== this.#current) this.#fresh.add(id);
    this.#sessions.set(id, session);
    this.#draw();
  }

  select(id) {
    this.#current = id;
    this.#fresh.delete(id);
    this.#draw();
  }

  title(id) {
    return this.#sessions.get(id)?.title ?? "";
  }

  /** On a narrow screen the list is a drawer. */
  toggle(isOpen) {
    if (document.body.classList.contains("drawer") === isOpen) return;
    document.body.classList.toggle("drawer", isOpen);
    $("main").inert = isOpen;
    $("menu").setAttribute("aria-expanded", isOpen);
    $(isOpen ? "close-menu" : "menu").focus();
  }

  #draw() {
    const sorted = [...this.#sessions.values()].sort((a, b) => moment(b) - moment(a));
    const groups = new Map();
    const format = new Intl.DateTimeFormat(language(), { dateStyle: "medium", timeStyle: "short" });
    for (const session of sorted) {
      const key = age(moment(session));
      groups.set(key, [...(groups.get(key) ?? []), session]);
    }
    const list = $("sessions");
    const focused = list.contains(document.activeElement) ? document.activeElement.hash : null;
    list.replaceChildren(...[...groups].flatMap(([key, sessions]) => [h("h3", {}, t(key)), this.#group(key, sessions, format)]));
    if (!sorted.length) list.append(h("p", { class: "muted", t: "noChats" }));
    if (focused) [...list.querySelectorAll("a")].find((link) => link.hash === focused)?.focus();
  }

  #group(key, sessions, format) {
    return h("ul", { "aria-label": t(key) }, ...sessions.map((session) => h("li", {}, this.#row(session, format))));
  }

  #row(session, format) {
    const { session_id: id, title, phase } = session;
    const state = phase === "running" ? "running" : phase === "waiting_approval" ? "waiting" : this.#fresh.has(id) ? "fresh" : null;
    const mark = state && h("span", { class: `mark ${state}` }, h("span", { class: "offstage" }, t(state)));
    const link = h("a", { href: `#${id}`, "aria-current": id === this.#current && "page" }, h("span", { class: "title" }, title || t("untitled")), mark);
    link.title = `${title || t("untitled")}\n${format.format(moment(session))}`;
    return link;
  }
}

/** Seconds since the epoch, or RFC 3339. */
function moment({ updated_at: at }) {
  const value = typeof at === "number" ? at * 1_000 : Date.parse(at);
  return Number.isNaN(value) ? 0 : value;
}

function age(when) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (when >= midnight) return "today";
  if (when >= midnight - DAY_MS) return "yesterday";
  return when >= midnight - 7 * DAY_MS ? "week" : "earlier";
}
