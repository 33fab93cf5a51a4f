/* Connection, demo mode, theme, and how to get in. */

import {$, announce, icon, listen} from "./dom.js"
import {attempt, name, say, t, toggleLanguage} from "./i18n.js"

const THEMES = ["system", "light", "dark"]
const PATIENCE_MS = 1_200

export class Status {
	#state = null
	#timer = 0
	#wasLost = false

	constructor(onRetry) {
		listen("retry", "click", onRetry)
		listen("gate-again", "click", () => location.reload())
		listen("theme", "click", () => this.#nextTheme())
		listen("language", "click", toggleLanguage)
		this.#drawTheme()
	}

	connection(state) {
		this.#state = state
		clearTimeout(this.#timer)
		$("gate").hidden = state.name !== "refused"
		$("page").inert = state.name === "refused"
		if (state.name === "refused") $("gate-again").focus()
		this.#light()
		if (state.name === "open") {
			$("connection").hidden = true
			if (this.#wasLost) announce(t("connected"))
			this.#wasLost = false
		} else if ($("connection").hidden) this.#timer = setTimeout(() => this.#tick(), PATIENCE_MS)
		else this.#tick()
	}

	about({model = {}, user_id: user = "", version = ""}) {
		$("user").textContent = user
		$("user").title = this.version = `miniOpenClaw ${version}`
		$("model").textContent = model.demo ? "" : (model.name ?? "")
		$("demo").hidden = !model.demo
		$("demo-hint").textContent = model.hint ?? ""
	}

	#light() {
		const kind = this.#state.name === "open" ? "connected" : "connecting"
		$("light").className = `light ${kind}`
		name($("light"), kind)
	}

	#tick() {
		if (this.#state.name === "open" || this.#state.name === "refused") return
		const seconds = Math.max(0, Math.ceil((this.#state.retryAt - Date.now()) / 1_000))
		if (!this.#wasLost) announce(t("connecting"))
		this.#wasLost = true
		$("connection").hidden = false
		if (!navigator.onLine) say($("connection-text"), "offline")
		else if (this.#state.name === "waiting" && seconds) say($("connection-text"), "lost", {seconds})
		else say($("connection-text"), "connecting")
		$("retry").disabled = this.#state.name !== "waiting"
		this.#timer = setTimeout(() => this.#tick(), 500)
	}

	#nextTheme() {
		this.setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.choice) + 1) % THEMES.length])
	}

	setTheme(choice) {
		attempt(() => localStorage.setItem("miniclaw.theme", choice))
		document.dispatchEvent(new CustomEvent("miniclaw:theme"))
		this.#drawTheme()
	}

	#drawTheme() {
		const choice = document.documentElement.dataset.choice
		$("theme").replaceChildren(icon(choice))
		name($("theme"), `theme_${choice}`)
	}
}
