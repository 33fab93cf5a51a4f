/* What opens over the page: menus, forms, and short lines that go away. */

import { $, announce, h, icon } from "./dom.js";
import { name, say, t } from "./i18n.js";

const TOAST_MS = 6_000;

/** A menu below a button; items are `[shape, key, run, style]`. */
export function menu(anchor, label, items) {
  const box = h("div", { class: "menu", role: "menu", popover: "auto", label });
  for (const [shape, key, run, style] of items) {
    const chosen = () => {
      box.hidePopover();
      run();
    };
    box.append(h("button", { type: "button", role: "menuitem", class: style, onclick: chosen }, icon(shape), h("span", { t: key })));
  }
  box.addEventListener("toggle", ({ newState }) => {
    if (newState === "open") return;
    if (box.contains(document.activeElement) || document.activeElement === document.body) anchor.focus();
    box.remove();
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Tab") box.hidePopover();
    if (!step) return;
    event.preventDefault();
    const all = [...box.children];
    all.at((all.indexOf(document.activeElement) + step) % all.length).focus();
  });
  document.body.append(box);
  box.showPopover();
  const at = anchor.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${at.bottom + box.offsetHeight > innerHeight - 8 ? Math.max(8, at.top - box.offsetHeight) : at.bottom + 4}px`;
  box.firstChild.focus();
}

/** A dialog around some elements; gone once it is closed. */
export function sheet(title, ...children) {
  const heading = h("h2", { t: title });
  const dialog = h("dialog", { class: "sheet", label: title }, heading, ...children);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * A form; fields are `{name, label, value, long, options: [[value, key]], optional}`.
 * `run(values)` may refuse by an error, which is shown and loses nothing.
 */
export function form(title, fields, run, ok = "save", danger = false) {
  const problem = h("p", { class: "problem-text", role: "alert" });
  const rows = fields.map(({ name: id, label, value = "", long, options, optional }) => {
    const given = { name: id, required: !optional, maxlength: long ? 4_000 : 200 };
    const input = options
      ? h("select", { name: id }, ...options.map(([choice, key]) => h("option", { value: choice, t: key, selected: choice === value })))
      : h(long ? "textarea" : "input", { ...given, rows: long && 4, autocomplete: "off" });
    if (!options) input.value = value;
    return h("label", {}, h("span", { t: label }), input);
  });
  const submit = h("button", { class: danger ? "primary danger" : "primary", t: ok });
  const cancel = h("button", { type: "button", t: "cancel", onclick: () => dialog.close() });
  const body = h("form", {}, ...rows, problem, h("div", { class: "choices" }, cancel, submit));
  body.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await run(Object.fromEntries(new FormData(body)));
      dialog.close();
    } catch (error) {
      problem.textContent = error.message || t("unreachable");
      submit.disabled = false;
    }
  });
  const dialog = sheet(title, body);
  (body.querySelector("input, textarea") ?? cancel).focus();
}

/** A short line that goes away; with `undo` it can be taken back until `done` is called. */
export function toast(text, undo = null, done = () => {}) {
  $("toasts").replaceChildren();
  const line = h("div", { class: "toast" }, h("span", {}, text));
  const end = (how) => {
    clearTimeout(timer);
    removeEventListener("pagehide", last);
    observer.disconnect();
    line.remove();
    how();
  };
  const last = () => end(done);
  if (undo) line.append(h("button", { type: "button", t: "undo", onclick: () => end(undo) }));
  const observer = new MutationObserver(() => line.isConnected || last());
  addEventListener("pagehide", last);
  const timer = setTimeout(last, TOAST_MS);
  $("toasts").append(line);
  observer.observe($("toasts"), { childList: true });
  announce(text);
}

/** Show what failed at the press of a button. */
export const failed = (error) => toast(error.message || t("unreachable"));

/** A button that is only a sign, with a name. */
export function signButton(shape, label, onclick) {
  return h("button", { class: "quiet", type: "button", label, onclick }, icon(shape));
}

/** Change a button's sign and name for a moment. */
export function flash(button, shape, key) {
  const before = button.dataset.tName;
  const sign = button.querySelector(".icon");
  const text = button.querySelector("[data-t]");
  const fresh = icon(shape);
  sign.replaceWith(fresh);
  if (text) say(text, key);
  else name(button, key);
  announce(t(key));
  setTimeout(() => {
    fresh.replaceWith(sign);
    if (text) say(text, "copy");
    else name(button, before);
  }, 1_600);
}
