/* Text of an answer: finished blocks, and the open text behind them. */

import {h, icon} from "./dom.js"
import {copyFrom} from "./ending.js"
import {soon} from "./paint.js"
import {ScrollKeeper} from "./scroll.js"

/** An open code block looks like a closed one. */
const FENCE = /^(?:\s*\n)? {0,3}(?:`{3,}(?!.*`)|~{3,})[^\S\n]*(\S*).*\n/
/** No paragraph, no code: its rows get another height. */
const GROWS = /^<(?!p>|pre(?! c))/

export class TextPart {
	#node = document.createTextNode("")
	#done = h("div.md")
	#open = h("div.open", {"aria-live": "off"}, this.#node)
	#head = null
	#fresh
	#added = ""
	#replaced = true

	constructor(text = "", blocks = [], open = text) {
		this.text = text
		this.count = blocks.length
		this.open = open
		this.element = h("div.part", this.#done, this.#open)
		this.#fresh = [...blocks]
		this.paint()
	}

	add(delta) {
		this.text += delta
		this.open += delta
		this.#added += delta
		soon(this)
	}

	/** Take a finished block; `false` = an earlier one is missing. */
	block({index, html, rest}) {
		if (index > this.count) return false
		if (index < this.count) return true
		this.count += 1
		this.#fresh.push(html)
		this.#setOpen(rest ?? "")
		return true
	}

	/** `html` is the whole, where it came. */
	finish(html) {
		if (this.open.trim()) {
			if (!html) return
			this.#done.replaceChildren(fragment(html))
			this.#fresh = []
		}
		this.#setOpen("")
	}

	paint() {
		const end = this.#node.data.includes(this.open.trim()) ? this.element : this.#done
		if (GROWS.test(this.#fresh[0])) ScrollKeeper.it.swapping(this.#done, end, () => this.#write())
		else this.#write()
	}

	#write() {
		this.#done.append(...this.#fresh.map(fragment))
		this.#fresh = []
		const [head, language] = FENCE.exec(this.open) ?? [null]
		if (this.#replaced || head !== this.#head) {
			this.#replaced = true
			this.#head = head
			this.#open.replaceChildren(head === null ? this.#node : h("pre", {"data-lang": language}, this.#node))
			if (head !== null) frameCode(this.#open.firstChild)
		}
		if (this.#replaced || !this.#node.length) this.#node.data = head === null ? this.open.replace(/^\s*\n/, "") : this.open.slice(head.length)
		else this.#node.appendData(this.#added)
		this.#added = ""
		this.#replaced = false
	}

	#setOpen(text) {
		this.open = text
		this.#replaced = true
		soon(this)
	}
}

function fragment(html) {
	const template = document.createElement("template")
	template.innerHTML = html
	for (const pre of template.content.querySelectorAll("pre:not(.math)")) frameCode(pre)
	for (const table of template.content.querySelectorAll("table")) {
		const frame = h("div.table", {tabindex: 0})
		table.replaceWith(frame)
		frame.append(table)
	}
	return template.content
}

function frameCode(pre) {
	const copy = event => copyFrom(event.currentTarget, pre.textContent.replace(/\n$/, ""))
	const button = h("button.quiet", {onclick: copy}, icon("copy"), h("span", {t: "copy"}))
	const frame = h("div.code")
	pre.replaceWith(frame)
	frame.append(h("div.code-head", h("span", pre.dataset.lang ?? ""), button), pre)
}
