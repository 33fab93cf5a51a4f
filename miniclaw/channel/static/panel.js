/* One frame for what `panels.js` and `inbox.js` describe. */

import {style} from "./dialogs.js"
import {$, h, icon, listen} from "./dom.js"
import {later, t, why} from "./i18n.js"

const SHAPES = {memory: "memory", skills: "skill", tools: "tool", usagePanel: "chart", inbox: "inbox", settings: "gear"}
const TYPING_MS = 200

export class Panel {
	kind = null
	#opener = null
	#timer = 0
	#query = ""
	#loads = null

	constructor(tools) {
		this.tools = {...tools, refresh: () => this.refresh()}
		const nav = $("panels")
		for (const [kind, shape] of Object.entries(SHAPES)) {
			const badge = kind === "inbox" && h("span", {id: "waiting", class: "badge"})
			const button = h("button", {"aria-expanded": "false", "aria-controls": "panel", onclick: () => this.toggle(kind)}, icon(shape), h("span", {t: kind}), badge)
			button.dataset.kind = kind
			nav.append(button)
		}
		$("close-panel").append(icon("cross"))
		listen("close-panel", "click", () => this.close())
		document.addEventListener("miniclaw:language", () => this.refresh())
	}

	toggle(kind) {
		return this.kind === kind ? this.close() : this.open(kind)
	}

	open(kind) {
		this.#opener = document.activeElement
		this.kind = kind
		this.#query = ""
		this.#mark()
		const search = kind === "memory" && h("input", {type: "search", "aria-label": t("find"), placeholder: t("find"), oninput: ({target}) => this.#typed(target.value)})
		$("panel-search").replaceChildren(search || "")
		$("panel-body").replaceChildren(h("p.muted", {t: "loading"}))
		this.refresh()
		$("panel-title").focus()
	}

	close() {
		if (!this.kind) return
		const hadFocus = $("panel").contains(document.activeElement)
		this.kind = null
		this.#mark()
		if (hadFocus) [this.#opener, $("menu"), $("message")].find(one => one?.checkVisibility({visibilityProperty: true})).focus()
	}

	async refresh() {
		const kind = this.kind
		const query = this.#query
		if (!kind) return
		$("panel-title").textContent = t(kind)
		let body
		try {
			this.#loads ??= load()
			body = await (await this.#loads)[kind](this.tools, query)
		} catch (error) {
			if (error instanceof TypeError) this.#loads = null
			else if (!error.code) throw error
			body = [h("p.problem-text", {role: "alert"}, why(error.code ? error : {code: "unreachable"})), h("button", {t: "retryNow", onclick: () => this.refresh()})]
		}
		if (kind === this.kind && query === this.#query) this.#show(body.flat().filter(Boolean))
	}

	/** The same button of the same thing keeps the focus. */
	#show(body) {
		const place = $("panel-body")
		const sign = element => `${element.closest(".approval,.card,li")?.textContent}\n${element.textContent}`
		const focused = place.contains(document.activeElement) && sign(document.activeElement)
		place.replaceChildren(...body)
		if (focused) ([...place.querySelectorAll("a,button,input,select,pre")].find(element => sign(element) === focused) ?? $("panel-title")).focus()
	}

	#typed(text) {
		clearTimeout(this.#timer)
		this.#query = text.trim()
		this.#timer = setTimeout(() => this.refresh(), TYPING_MS)
	}

	#mark() {
		$("panel").hidden = !this.kind
		document.body.classList.toggle("has-panel", this.kind)
		for (const button of $("panels").children) button.setAttribute("aria-expanded", button.dataset.kind === this.kind)
	}
}

async function load() {
	const [{PANELS}, {INBOX}] = await later(Promise.all([import("./panels.js"), import("./inbox.js"), style("panel")]))
	return {...PANELS, ...INBOX}
}
