/* The menu of commands behind a slash. */

import {h} from "./dom.js"
import {t} from "./i18n.js"

/** Those with a space take words behind them. */
const COMMANDS = ["new", "rename ", "fork", "clear", "compact ", "model ", "remember ", "memories ", "skills ", "tools", "timers", "stats", "help"]

export class SlashMenu {
	#found = []
	#index = 0
	#refused = ""

	constructor(field, box, write, send) {
		Object.assign(this, {field, box, write, send})
		field.addEventListener("blur", () => this.close())
		box.addEventListener("mousedown", event => {
			event.preventDefault()
			this.#index = [...box.children].indexOf(event.target.closest("[role=option]"))
			if (this.#index >= 0) this.#choose()
		})
	}

	close() {
		this.#found = []
		this.#draw()
	}

	update() {
		const text = this.field.value
		const isOpen = /^\/[a-z]*$/.test(text) && text !== this.#refused
		this.#refused = isOpen ? "" : this.#refused
		this.#found = isOpen ? COMMANDS.filter(command => command.startsWith(text.slice(1)) && `/${command}` !== text) : []
		this.#index = 0
		this.#draw()
	}

	pressed(event) {
		if (!this.#found.length) return false
		const step = {ArrowDown: 1, ArrowUp: -1}[event.key]
		if (step) this.#index = (this.#index + step + this.#found.length) % this.#found.length
		else if (event.key === "Escape") {
			this.#refused = this.field.value
			this.#found = []
		} else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) {
			event.preventDefault()
			this.#choose()
			return true
		} else return false
		event.preventDefault()
		event.stopPropagation()
		this.#draw()
		return true
	}

	#choose() {
		const command = this.#found[this.#index]
		this.write(`/${command}`)
		this.close()
		if (!command.endsWith(" ")) this.send()
	}

	#draw() {
		const rows = this.#found.map((command, index) =>
			h("div", {role: "option", id: `slash-${index}`, "aria-selected": String(index === this.#index)}, h("code", `/${command.trim()}`), h("span", t(`cmd_${command.trim()}`)))
		)
		this.box.replaceChildren(...rows)
		this.box.hidden = !rows.length
		if (rows.length) this.field.setAttribute("aria-activedescendant", `slash-${this.#index}`)
		else this.field.removeAttribute("aria-activedescendant")
		rows[this.#index]?.scrollIntoView({block: "nearest"})
	}
}
