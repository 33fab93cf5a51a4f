/* What stands below an answer: why it ended, what it cost, which memories it used. */

import { announce, copyText, h, icon } from "./dom.js";
import { name, number, t } from "./i18n.js";

/** One line inside an answer; `kind` is `note`, `done` or `problem`. */
export function note(kind, key, fill) {
  const sign = { note: "stop", done: "check", problem: "warn" }[kind];
  return h("div", { class: `part ${kind === "done" ? "note" : kind}` }, icon(sign), h("span", { t: [key, fill] }));
}

/** The line under an answer; `text` gives the answer's source. */
export function ending(text, { usage, warning, used_memories: used = [], saved_memories: saved = [] } = {}) {
  const line = h("div", { class: "ending" });
  if (text()) line.append(copyButton(text));
  if (usage && (usage.input_tokens || usage.output_tokens)) {
    const fill = { input: number(usage.input_tokens ?? 0), output: number(usage.output_tokens ?? 0) };
    line.append(h("span", { class: "usage", t: ["usage", fill] }));
    if (usage.cost > 0) line.append(h("span", { class: "usage" }, `$${usage.cost.toPrecision(2)}`));
  }
  if (warning) line.append(h("span", { class: "problem-text" }, warning));
  if (used.length) line.append(memories("usedMemories", used));
  if (saved.length) line.append(memories("savedMemories", saved));
  return line;
}

function copyButton(text) {
  const button = h("button", { class: "quiet", type: "button", label: "copyAnswer" }, icon("copy"));
  button.addEventListener("click", async () => {
    const copied = await copyText(text());
    button.replaceChildren(icon(copied ? "check" : "cross"));
    name(button, copied ? "copied" : "copyFailed");
    announce(t(copied ? "copied" : "copyFailed"));
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      name(button, "copyAnswer");
    }, 1_600);
  });
  return button;
}

function memories(key, list) {
  const items = list.map((memory) => h("li", {}, typeof memory === "string" ? memory : (memory.content ?? memory.memory_id)));
  const summary = h("summary", {}, h("span", { t: [key, { count: list.length }] }), h("span", { class: "chevron" }, icon("right")));
  return h("details", { class: "memories" }, summary, h("ul", {}, ...items));
}
