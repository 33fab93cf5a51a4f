/* What stands below an answer. */

import {flash, signButton} from "./dialogs.js"
import {copyText, h, icon} from "./dom.js"
import {number} from "./i18n.js"

export function note(kind, key, fill) {
	const sign = {note: "stop", done: "check", problem: "warn"}[kind]
	return h("div", {class: `part ${kind === "done" ? "note" : kind}`}, icon(sign), h("span", {t: [key, fill]}))
}

export function ending(text, {usage, warning, used_memories: used = [], saved_memories: saved = []} = {}, on = {}) {
	const line = h("div.ending")
	const buttons = h("div.acts")
	if (text()) buttons.append(copyButton(text, "copyAnswer"), signButton("quote", "quote", on.quote))
	if (on.again) buttons.append(signButton("again", "regenerate", on.again))
	buttons.addEventListener("mousedown", event => event.preventDefault()); // keeps what is selected
	line.append(buttons)
	if (usage && (usage.input_tokens || usage.output_tokens)) {
		const fill = {input: number(usage.input_tokens ?? 0), output: number(usage.output_tokens ?? 0)}
		line.append(h("span.usage", {t: ["usage", fill]}))
		if (usage.cost > 0) line.append(h("span.usage", `$${usage.cost.toPrecision(2)}`))
	}
	if (warning) line.append(h("span.problem-text", warning))
	if (used.length) line.append(memories("usedMemories", used))
	if (saved.length) line.append(memories("savedMemories", saved))
	return line
}

export const copyButton = (text, label) => signButton("copy", label, event => copyFrom(event.currentTarget, text()))

export async function copyFrom(button, text) {
	const copied = await copyText(text)
	flash(button, copied ? "check" : "cross", copied ? "copied" : "copyFailed")
}

function memories(key, list) {
	const mark = memory => (memory.category === "sensitive" ? "[sensitive / 敏感] " : "")
	const items = list.map(memory => h("li", typeof memory === "string" ? memory : mark(memory) + (memory.content ?? memory.memory_id)))
	const summary = h("summary", h("span", {t: [key, {count: list.length}]}), h("span.chevron", icon("right")))
	return h("details.memories", summary, h("ul", ...items))
}

export function chip({id, name, problem}, button = null) {
	const sign = id ? icon("file") : problem ? icon("warn") : h("span.spinner")
	const text = h("span.title", name)
	return h("div", {class: problem ? "chip bad" : "chip", role: "listitem"}, sign, h("span.chip-text", text, problem && h("span.muted", problem)), button)
}
