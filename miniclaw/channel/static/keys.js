/* Keyboard shortcuts, and the sheet that tells them. */

import { sheet } from "./dialogs.js";
import { $, h } from "./dom.js";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const MAIN = MAC ? "⌘" : "Ctrl";
const SHORTCUTS = [
  [["Enter"], "send"],
  [["Shift", "Enter"], "keyLine"],
  [["/"], "keySlash"],
  [["↑"], "keyEdit"],
  [["Esc"], "keyEscape"],
  [[MAIN, "K"], "search"],
  [[MAIN, "Shift", "O"], "newChat"],
  [[MAIN, "Shift", ";"], "keyCopy"],
  [[MAIN, "/"], "shortcuts"],
];

/** `on` has `newChat()`, `search()`, `copyLast()` and `escape()`. */
export function listenForKeys(on) {
  addEventListener("keydown", (event) => {
    const isMain = (MAC ? event.metaKey : event.ctrlKey) && !event.altKey;
    const key = event.key.toLowerCase();
    if (document.querySelector("dialog[open]") || $("page").inert || event.isComposing) return;
    if (event.key === "Escape") return void on.escape();
    const run = isMain && (event.shiftKey ? { o: on.newChat, ";": on.copyLast, ":": on.copyLast } : { k: on.search, "/": showShortcuts })[key];
    if (!run) return;
    event.preventDefault();
    run();
  });
}

export function showShortcuts() {
  const rows = SHORTCUTS.map(([keys, key]) => h("div", {}, h("dt", { t: key }), h("dd", {}, ...keys.map((one) => h("kbd", {}, one)))));
  const close = h("button", { type: "button", t: "close", autofocus: true, onclick: () => dialog.close() });
  const dialog = sheet("shortcuts", h("dl", { class: "keys-list" }, ...rows), h("div", { class: "choices" }, close));
}
