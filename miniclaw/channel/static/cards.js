/* Tool calls and reasoning, which fold, and approvals. */

import {h, icon} from "./dom.js"
import {attempt, clock, name, number, say, why} from "./i18n.js"
import {soon} from "./paint.js"

const SHOWN_CHARACTERS = 20_000
const MORE_CHARACTERS = 200_000
const BRIEF_CHARACTERS = 90

const asText = (value = "") => (typeof value === "string" ? value : value === null ? "" : JSON.stringify(value, null, 2))

/** With escapes for what turns text round. */
const upright = text => text.replace(/\p{Bidi_Control}/gu, sign => `\\u${sign.charCodeAt().toString(16).padStart(4, "0")}`)

const parsed = value => (typeof value === "string" ? attempt(() => JSON.parse(value), value) : (value ?? {}))

function brief(value) {
	const fields = typeof value === "object" ? Object.values(value) : [value]
	const line = fields.map(field => (typeof field === "string" ? field : JSON.stringify(field))).join(" · ")
	const short = upright(line).replace(/\s+/g, " ").trim()
	return short.length > BRIEF_CHARACTERS ? `${short.slice(0, BRIEF_CHARACTERS)}…` : short
}

/** Text in a frame, piece by piece: nothing freezes. */
export function frame(whole) {
	const text = upright(whole)
	let shown = SHOWN_CHARACTERS
	const pre = h("pre", {tabindex: 0}, text.slice(0, shown))
	if (text.length <= shown) return [pre]
	const told = () => ["showMore", {shown: number(shown), count: number(text.length)}]
	const more = h("button.quiet", {t: told()})
	more.addEventListener("click", () => {
		pre.append(text.slice(shown, (shown += MORE_CHARACTERS)))
		if (shown >= text.length) more.remove()
		else say(more, ...told())
	})
	return [pre, more]
}

function milliseconds(ms) {
	if (ms < 1) return "< 1 ms"
	return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`
}

export class ToolPart {
	#state = h("span.tool-state")
	#time = h("span.tool-time")
	#body = h("div.fold-body")
	#content = null

	constructor(call) {
		this.id = call.call_id
		this.arguments = parsed(call.arguments)
		const what = h("span.tool-what", h("span.tool-name", call.name), brief(this.arguments))
		const summary = h("summary", this.#state, what, this.#time, h("span.chevron", icon("right")))
		this.element = h("details.part.fold.tool", summary, this.#body)
		// Filled before it opens: nothing jumps; a search needs no click.
		summary.addEventListener("click", () => this.#fill())
		this.element.addEventListener("toggle", () => this.element.open && this.#fill())
		this.#show("running")
	}

	get isDone() {
		return this.state === "ok" || this.state === "failed"
	}

	restart() {
		this.#content = null
		this.#show("running")
	}

	progress({progress, total, message}) {
		this.#time.textContent = [total === null ? progress : `${progress}/${total}`, message.slice(0, 60)].join(" ")
	}

	finish({ok, content, ms}) {
		this.#content = asText(content)
		if (typeof ms === "number") this.#time.textContent = milliseconds(ms)
		this.#show(ok === false ? "failed" : "ok")
	}

	close() {
		if (!this.isDone) this.#show("unknown")
	}

	#show(state) {
		this.state = state
		this.element.dataset.state = state
		const sign = {ok: "check", failed: "cross", unknown: "warn"}[state]
		this.#state.replaceChildren(sign ? icon(sign) : h("span.spinner"), h("span.offstage", {t: `tool_${state}`}))
		if (this.element.open) this.#fill()
	}

	#fill() {
		const fields = Object.keys(this.arguments).length || typeof this.arguments === "string"
		const given = fields ? frame(asText(this.arguments)) : [h("p.muted", {t: "noArguments"})]
		const result = this.#content === null ? [] : this.#content ? frame(this.#content) : [h("p.muted", {t: "emptyResult"})]
		if (result.length) result.unshift(h("h4", {t: this.state === "failed" ? "tool_failed" : "result"}))
		this.#body.replaceChildren(h("h4", {t: "arguments"}), ...given, ...result)
	}
}

export class ReasoningPart {
	#node = document.createTextNode("")
	#added

	constructor(text = "") {
		this.#added = text
		const summary = h("summary", icon("bulb"), h("span", {t: "reasoning"}), h("span.chevron", icon("right")))
		this.element = h("details.part.fold.reasoning", summary, h("div.fold-body", {"aria-live": "off"}, h("p", this.#node)))
		this.paint()
	}

	add(delta) {
		this.#added += delta
		soon(this)
	}

	paint() {
		this.#node.appendData(this.#added)
		this.#added = ""
	}
}

const RESOLUTIONS = {denied: "denied", unattended: "denied", once: "approvedOnce", session: "approvedSession", always: "approvedAlways"}

const CHOICES = [["once", "allowOnce", "primary"], ["session", "allowSession"], ["always", "allowAlways"], ["deny", "deny", "danger"]]

/** `decide(id, choice)` tells the server. */
export class ApprovalPart {
	#buttons = h("div.choices")
	#problem = h("p.problem-text", {role: "alert"})

	constructor(request, decide) {
		this.id = request.approval_id
		this.tool = request.tool
		const title = h("p.approval-title", icon("shield"), h("span", {t: ["approvalTitle", {tool: request.tool}]}))
		const about = request.summary ? h("p.approval-about", request.summary) : null
		for (const [choice, key, style] of CHOICES) this.#buttons.append(h("button", {class: style, t: key, onclick: () => this.#choose(choice, decide)}))
		this.element = h("div.part.approval", {role: "group"}, title, about, ...frame(asText(parsed(request.arguments))), this.#buttons, this.#problem)
		name(this.element, "approvalTitle", {tool: request.tool})
		if (request.expires_at) this.#buttons.after(h("p.muted", {t: ["approvalUntil", {time: clock(new Date(request.expires_at))}]}))
	}

	async #choose(choice, decide) {
		this.#enable(false)
		this.#problem.textContent = ""
		try {
			await decide(this.id, choice)
		} catch (error) {
			this.#problem.textContent = why(error)
			this.#enable(true)
		}
	}

	close() {
		this.resolve()
	}

	#enable(enabled) {
		for (const button of this.#buttons.children) button.disabled = !enabled
	}

	resolve(decision) {
		if (this.isResolved) return
		this.isResolved = true
		const key = RESOLUTIONS[decision] ?? "approvalOver"
		this.element.className = "part note"
		for (const attribute of ["role", "aria-label", "data-t-name"]) this.element.removeAttribute(attribute)
		this.element.replaceChildren(icon(key.startsWith("approved") ? "check" : "cross"), h("span", {t: [key, {tool: this.tool}]}))
	}
}
