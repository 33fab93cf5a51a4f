/* The parts of an answer in order of arrival. */

import {ReasoningPart, ToolPart} from "./cards.js"
import {h} from "./dom.js"
import {note} from "./ending.js"
import {TextPart} from "./text.js"

export class Answer {
	#parts = []

	constructor() {
		this.element = h("div.answer", {role: "group", label: "answer"})
	}

	get text() {
		const texts = this.#parts.filter(part => part instanceof TextPart)
		return texts.map(part => part.text.trim()).filter(Boolean).join("\n\n")
	}

	get lastText() {
		return this.#parts.findLast(part => part instanceof TextPart)
	}

	/** Text whose last blocks never came; those of the last one may. */
	get hasRaw() {
		const last = this.lastText
		return this.#parts.some(part => part !== last && part.open?.trim())
	}

	add(part) {
		this.#parts.push(part)
		this.element.append(part.element)
		return part
	}

	note(kind, key, fill) {
		return this.add({element: note(kind, key, fill)})
	}

	current(kind) {
		const part = this.#parts.at(-1)
		return part instanceof kind ? part : this.add(new kind())
	}

	endsWith(kind) {
		return this.#parts.at(-1) instanceof kind
	}

	tool(callId) {
		return this.#parts.findLast(part => part instanceof ToolPart && part.id === callId)
	}

	find(id) {
		return this.#parts.find(part => part.id === id)
	}

	removeLast() {
		this.#parts.pop()?.element.remove()
	}

	clear() {
		this.#parts = []
		this.element.replaceChildren()
	}

	/** What was not stored goes: all behind the last tool's result. */
	withdraw() {
		const kept = this.#parts.findLastIndex(part => part instanceof ToolPart && part.isDone) + 1
		for (const part of this.#parts.splice(kept)) part.element.remove()
	}

	close() {
		for (const part of this.#parts) part.close?.()
	}

	addMessage(message) {
		if (message.role === "tool") this.tool(message.tool_call_id)?.finish(message)
		if (message.role !== "assistant") return
		if (message.reasoning) this.add(new ReasoningPart(message.reasoning))
		if (message.content) this.addText(message.content, message.html)
		for (const {id, function: call} of message.tool_calls ?? []) {
			this.add(new ToolPart({call_id: id, name: call.name, arguments: call.arguments}))
		}
	}

	/** `html` is one piece or blocks, `rest` what is still open. */
	addText(text, html, rest = "") {
		const blocks = [html ?? []].flat()
		return this.add(new TextPart(text, blocks, blocks.length ? rest : text))
	}

	/** Whether all is rendered: text before the last tool has no HTML. */
	replace({text = "", segment = text, reasoning, tools = [], html, rest}) {
		this.clear()
		const before = text.endsWith(segment) ? text.slice(0, text.length - segment.length) : ""
		if (reasoning) this.add(new ReasoningPart(reasoning))
		if (before.trim()) this.addText(before)
		for (const tool of tools) {
			const part = this.add(new ToolPart(tool))
			if (typeof tool.ok === "boolean") part.finish(tool)
		}
		if (segment) this.addText(segment, html, rest)
		return !before.trim()
	}
}
