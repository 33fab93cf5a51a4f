/* One turn: a message and its answer. */

import {Answer} from "./answer.js"
import {ApprovalPart, ReasoningPart, ToolPart, frame} from "./cards.js"
import {announce, h} from "./dom.js"
import {editor, signButton} from "./dialogs.js"
import {chip, copyButton, ending, note} from "./ending.js"
import {known, later, say, t, why} from "./i18n.js"
import {TextPart} from "./text.js"

const ENDS = {"turn.finished": "finished", "turn.failed": "failed", "turn.cancelled": "cancelled", "command.result": "commandDone"}

export const isTerminal = eventName => eventName in ENDS

const helpText = commands => commands.map(({name, about}) => `/${name}  ${known(`cmd_${name}`) ?? about}`).join("\n")

const bare = text => text.replace(/\s+/g, "")

export class Turn {
	#bubble = h("div.bubble")
	#acts = h("div.acts")
	#files = h("div.files", {role: "list"})
	#answer = new Answer()
	#pulseText = h("span", {t: "sending"})
	#pulse = h("div.pulse", {"aria-live": "off"}, h("span.dot"), this.#pulseText)
	#foot = h("div.foot", this.#pulse)
	#userText = null
	#outcome = null
	#isOld = false

	/** Without an id it waits to be taken. */
	constructor(id, on) {
		Object.assign(this, {id, on, attempt: 0, seq: 0})
		/** Not all is shown: the log is read when the turn ends. */
		this.isDirty = false
		/** It seems to have ended without an answer. */
		this.isGuess = false
		this.#acts.append(copyButton(() => this.#userText, "copy"), signButton("edit", "editMessage", () => this.edit()))
		const user = h("div.user", {role: "group", label: "youSaid"}, this.#files, this.#bubble, this.#acts)
		this.element = h("article.turn", user, this.#answer.element, this.#foot)
		this.#setState("waiting")
	}

	get hasEnded() {
		return this.element.dataset.state === "ended"
	}

	setUser(text, files) {
		if (Array.isArray(files)) this.#files.replaceChildren(...files.map(file => chip({id: file.id, name: file.name ?? file.id})))
		if (typeof text !== "string" || this.#userText?.length >= text.length) return
		this.#userText = text
		this.#bubble.textContent = text
		this.#acts.hidden = !text
	}

	edit() {
		if (this.id && this.#bubble.isConnected) editor(this.#bubble, this.#acts, this.#userText, text => this.on.branch(this, text))
	}

	get text() {
		return this.#answer.text
	}

	wait(key, fill) {
		say(this.#pulseText, key, fill)
	}

	#queue(place) {
		this.place = place
		this.wait(place > 0 ? "queued" : "queuedNext", {position: place})
	}

	moveUp({place = 0}) {
		if (!this.hasEnded && this.place > place) this.#queue(this.place - 1)
	}

	/** What is shown stays until the next events tell all. */
	restart() {
		Object.assign(this, {attempt: 0, seq: 0, isDirty: false})
		this.#isOld = true
	}

	async showResult({text, result: {commands} = {}}) {
		if (commands) text = await later(commands).then(helpText)
		if (text && text !== "OK") this.#answer.add({element: h("div.part.plain", ...frame(text))})
		else this.#answer.note("done", "commandDone")
		this.#setState("ended")
		this.#foot.replaceChildren()
	}

	refuse(reason, again, discard) {
		this.#setState("ended")
		const buttons = [h("button", {t: "sendAgain", onclick: again}), h("button", {t: "discard", onclick: discard})]
		this.#foot.replaceChildren(note("problem", "notSent", {reason}), h("div.choices", ...buttons))
	}

	/** `gap` when events before it are missing, `lost` when only a snapshot helps. */
	take({name, attempt, seq, data}) {
		if (this.hasEnded && !this.isGuess) return this.#late(name, data)
		if (attempt < this.attempt) return
		if (name === "text.block") return this.#block(attempt, seq, data)
		const isKnownFromLog = this.isGuess
		if (isKnownFromLog) this.#reopen(isTerminal(name))
		if (name === "turn.snapshot") {
			Object.assign(this, {attempt, seq: data.seq ?? seq})
			return this.#replace(data)
		}
		if (attempt > 0 && seq > 0) {
			if (attempt > this.attempt) {
				if (this.attempt) this.#answer.withdraw()
				Object.assign(this, {attempt, seq: 0})
			}
			if (seq <= this.seq) return
			if (seq === 1 && this.#isOld) this.#clear()
			if (seq > this.seq + 1) {
				if (!isTerminal(name)) return "gap"
				this.isDirty = !isKnownFromLog
			}
			this.seq = seq
		}
		this.#apply(name, data)
	}

	/** Show what the log holds; `isOver` = nothing more is expected. */
	fill(messages, isOver) {
		this.#clear()
		this.isDirty = false
		this.isCut = messages[0].role !== "user"
		for (const message of messages) {
			if (message.role === "user") this.setUser(message.content ?? "", message.attachments)
			else this.#answer.addMessage(message)
		}
		const last = messages.at(-1)
		const hasAnswer = last?.role === "assistant" && !last.tool_calls?.length
		if (this.#outcome) this.#close(this.#outcome.name, this.#outcome.data)
		else if (hasAnswer) this.#close(last.cancelled ? "turn.cancelled" : "turn.finished", {...last, code: undefined, text: undefined})
		else if (isOver) {
			this.#answer.note("note", "noAnswer")
			this.#end({})
			this.isGuess = true
		}
		if (hasAnswer && !this.#outcome?.data.usage) this.#outcome = null
	}

	fail(error) {
		if (!this.hasEnded) this.#close("turn.failed", error)
	}

	#apply(name, data) {
		switch (name) {
			case "turn.queued":
				this.setUser(data.text, data.attachments)
				return this.#queue(data.position)
			case "turn.started":
				this.place = 0
				this.setUser(data.text, data.attachments)
				return this.#run(this.attempt > 1 ? "retried" : "thinking")
			case "text.delta":
				this.#answer.current(TextPart).add(data.text)
				return this.#setState("writing")
			case "reasoning.delta":
				this.#answer.current(ReasoningPart).add(data.text)
				return this.#run("thinking")
			case "tool.started":
				this.#tool(data).restart()
				return this.#run("working")
			case "tool.progress":
				return this.#answer.tool(data.call_id)?.progress(data)
			case "tool.finished":
				this.#tool(data).finish(data)
				return this.#run("working")
			case "approval.requested":
				return this.#ask(data)
			case "approval.resolved":
				this.#answer.find(data.approval_id)?.resolve(data.scope ?? data.decision)
				return this.#run("working")
			default:
				return isTerminal(name) && this.#finish(name, data)
		}
	}

	#tool = data => this.#answer.tool(data.call_id) ?? this.#answer.add(new ToolPart(data))

	#run(key) {
		this.#setState("running")
		this.wait(key, {attempt: this.attempt})
	}

	#ask(request) {
		this.#answer.add(new ApprovalPart(request, this.on.decide))
		this.#setState("asking")
		this.wait("awaiting")
		announce(t("approvalNeeded", {tool: request.tool}))
	}

	#block(attempt, seq, data) {
		const isLast = seq === this.seq + 1 && data.rest === ""
		if (attempt > this.attempt || (seq > this.seq && !isLast)) return "gap"
		const part = this.#answer.lastText
		// A missing block of an older moment: its rest was overtaken.
		const isLate = seq < this.seq && data.index >= (part?.count ?? 0)
		return part && !isLate && part.block(data) ? undefined : "lost"
	}

	#replace(snapshot) {
		this.#isOld = false
		this.isDirty = !this.#answer.replace(snapshot)
		this.#foot.replaceChildren(this.#pulse)
		if (this.#answer.endsWith(TextPart)) this.#setState("writing")
		else this.#run(snapshot.tools?.length ? "working" : "thinking")
		if (snapshot.approval) this.#ask(snapshot.approval)
	}

	#finish(name, data) {
		if (name === "command.result") return this.showResult(data)
		this.isDirty ||= this.#answer.hasRaw
		if (name === "turn.finished") this.#finishText(data)
		if (name === "turn.cancelled" && data.text && !this.#answer.text) this.#answer.addText(data.text)
		this.#close(name, data)
		return announce(t(ENDS[name], {reason: why(data)}))
	}

	#finishText({text = "", html}) {
		const shown = bare(this.#answer.text)
		const last = this.#answer.endsWith(TextPart) ? this.#answer.lastText : null
		if (!shown && text) this.#answer.addText(text, html)
		else if (!shown.endsWith(bare(text))) this.isDirty = true
		else if (last && bare(last.text) === bare(text)) last.finish(html)
		else if (last?.open.trim()) this.isDirty = true
	}

	#close(name, data) {
		this.#outcome = {name, data}
		if (name === "turn.failed") this.#answer.note("problem", "failed", {get reason() { return why(data) }})
		if (name === "turn.cancelled") this.#answer.note("note", "cancelled")
		if (data.stopped_by) this.#answer.note("note", `stopped_${data.stopped_by}`)
		this.#end(data)
	}

	#end(data) {
		this.#answer.close()
		this.#setState("ended")
		this.#showEnding(data)
	}

	#showEnding(data) {
		const again = this.id && this.#userText ? () => this.on.branch(this, this.#userText) : null
		this.#foot.replaceChildren(ending(() => this.#answer.text, data, {quote: () => this.#quote(), again}))
	}

	#quote() {
		const selection = getSelection()
		const isInside = !selection.isCollapsed && this.#answer.element.contains(selection.anchorNode)
		this.on.quote(isInside ? selection.toString() : this.#answer.text)
	}

	#late(name, data) {
		if (name !== "turn.finished" || this.#outcome) return
		this.#outcome = {name, data}
		this.#showEnding(data)
	}

	/** It was not over: all comes again, or only how it ended. */
	#reopen(isOnlyEnd) {
		this.isGuess = false
		if (isOnlyEnd) this.#answer.removeLast()
		else this.#clear()
	}

	#setState(state) {
		this.element.dataset.state = state
	}

	#clear() {
		this.#isOld = this.isCut = false
		this.#answer.clear()
		this.#foot.replaceChildren(this.#pulse)
		this.#setState("waiting")
		this.wait("thinking")
	}
}
