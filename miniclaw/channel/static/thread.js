/* One chat: its turns in order, brought together from the log, live events, and messages on their way. */

import {ApiError, getMessages} from "./api.js"
import {failed} from "./dialogs.js"
import {h, icon} from "./dom.js"
import {Turn, isTerminal} from "./turn.js"

const CATCH_UP_PAUSE_MS = 400

export class Thread {
	#turns = new Map()
	#echoes = new Map()
	#list = h("div.turns")
	#older = h("button", {type: "button", class: "older quiet", t: "older", hidden: true})
	#loading = h("p.loading.muted", {t: "loading"})
	#problem = h("div.thread-problem", {role: "alert"})
	#first
	#buffer = null
	#again = false
	#knows = false

	/**
	 * @param place `{session}` of a chat that exists, or `{draft}` of one that begins with its first message
	 * @param tools `{wire, outbox, scroll, onChange, quote(text), branch(thread, turn, text)}`
	 */
	constructor({session = null, draft = null}, tools) {
		Object.assign(this, {session, draft, tools, title: "", isStale: true, scrollPlace: null})
		this.#older.addEventListener("click", () => this.#loadOlder())
		new IntersectionObserver(([seen]) => seen.isIntersecting && this.#knows && this.#loadOlder(), {root: tools.scroll.scroller, rootMargin: "300px 0px 0px"}).observe(this.#older)
		this.element = h("section.thread", {role: "log", label: "conversation"}, this.#older, this.#list, this.#loading, this.#problem)
		this.#loading.hidden = !session
		for (const entry of tools.outbox.of({session, draft})) this.echo(entry)
	}

	get isEmpty() {
		return !this.#list.childElementCount && (this.#knows || !this.session)
	}

	/** The turn that Stop means: the one that runs, else the first that waits. */
	get active() {
		const open = [...this.#turns.values()].filter(turn => !turn.hasEnded)
		return open.find(turn => turn.attempt > 0) ?? open[0]
	}

	echo(entry) {
		const turn = new Turn(null, this.#on)
		turn.setUser(entry.text)
		turn.setFiles(entry.attachments)
		turn.wait(this.tools.wire.isOpen ? "sending" : "keptForLater")
		this.#echoes.set(entry.id, turn)
		this.#list.append(turn.element)
		this.tools.onChange(this)
	}

	connectionChanged(isOpen) {
		for (const turn of this.#echoes.values()) if (!turn.hasEnded) turn.wait(isOpen ? "sending" : "keptForLater")
	}

	accepted(entry, {turn_id: id, result = {}}) {
		const turn = this.#echoes.get(entry.id)
		this.#echoes.delete(entry.id)
		if (!id) turn?.showResult(result)
		else if (this.#turns.has(id)) {
			// Its first event was faster than its receipt.
			this.#turns.get(id).setUser(entry.text)
			turn?.element.remove()
		} else if (turn) {
			turn.id = id
			turn.sentAs = entry.id
			turn.wait("thinking")
			this.#turns.set(id, turn)
		}
		this.tools.onChange(this)
	}

	refused(entry, error) {
		const turn = this.#echoes.get(entry.id)
		if (!turn) return
		const discard = () => {
			this.#echoes.delete(entry.id)
			turn.element.remove()
			this.tools.onChange(this)
		}
		const again = () => {
			discard()
			this.echo(this.tools.outbox.add(entry.text, this, entry.attachments))
			this.tools.scroll.toEnd()
		}
		turn.refuse(error.message || error.code, again, discard)
		this.tools.onChange(this)
	}

	take(payload) {
		if (this.#buffer) {
			this.#buffer.push(payload)
			return
		}
		const turn = this.#turns.get(payload.turn_id) ?? this.#append(payload.turn_id)
		const missing = turn.take(payload)
		if (missing) this.#catchUp(turn, missing)
		if (isTerminal(payload.name) && turn.isDirty) this.sync()
		if (!/^text\.|\.delta$/.test(payload.name)) this.tools.onChange(this)
	}

	get last() {
		return [...this.#turns.values()].find(turn => turn.element === this.#list.lastElementChild)
	}

	async positionOf(turn) {
		const isOurs = message => message.role === "user" && message.turn_id === turn.id
		const known = turn.messages?.find(isOurs) ?? (await getMessages(this.session)).messages.find(isOurs)
		if (!known) throw new ApiError(0, "not_found", "")
		return known.position
	}

	failed(error) {
		const turn = [...this.#turns.values()].find(({sentAs}) => sentAs && sentAs === error.reply_to)
		turn?.fail(error)
	}

	async cancel() {
		const turn = this.active
		if (turn) await this.tools.wire.command("cancel", {turn_id: turn.id})
	}

	/** Bring the chat up to date: subscribe and ask for the running turn, then read the log, then go on live. */
	async sync() {
		if (!this.session) return
		if (this.#buffer) {
			this.#again = true
			return
		}
		this.#buffer = []
		this.#setBusy(true)
		let loose = []
		try {
			const running = this.tools.wire.isOpen ? await this.#resume(this.active) : undefined
			const page = await getMessages(this.session)
			this.#merge(page, running)
			this.#knows = true
			this.#loading.hidden = true
			this.isStale = running === undefined
			this.#fail(null)
			if (running !== undefined) loose = [...this.#turns.values()].filter(turn => turn.isGuess || (!turn.hasEnded && turn.id !== running))
		} catch (error) {
			this.isStale = true
			if (error instanceof ApiError || !error.isLost) this.#fail(error)
		} finally {
			const buffered = this.#buffer
			this.#buffer = null
			for (const payload of buffered) this.take(payload)
			this.#setBusy(false)
		}
		for (const turn of loose.slice(-3)) this.#ask(turn).catch(() => (this.isStale = true))
		this.tools.onChange(this)
		if (this.#again) {
			this.#again = false
			this.sync()
		}
	}

	/** Subscribe, have the running turn sent as far as it is missing, and say which it is. */
	async #resume(turn) {
		const running = await this.#ask(turn).catch(error => {
			if (error.code !== "turn_not_found") throw error
			return this.#ask()
		})
		const isOther = turn && running && running !== turn.id
		return isOther ? this.#ask(this.#turns.get(running) ?? {id: running}) : running
	}

	async #ask(turn) {
		const known = turn?.attempt ? {attempt: turn.attempt, after_seq: turn.seq} : {}
		const result = await this.tools.wire.command("resume", {session_id: this.session, ...(turn && {turn_id: turn.id}), ...known})
		if (result.title) this.title = result.title
		return result.turn_id ?? null
	}

	async #catchUp(turn, missing) {
		if (turn.isCatchingUp) return
		turn.isCatchingUp = true
		if (missing === "lost") turn.restart()
		try {
			await this.#ask(turn)
		} catch {
			this.isStale = true
		}
		setTimeout(() => (turn.isCatchingUp = false), CATCH_UP_PAUSE_MS)
	}

	/** Put a page of the log in; of the running turn only what the user said, the rest comes as events. */
	#merge(page, running) {
		const groups = byTurn(page.messages)
		if (page.more && this.#knows && ![...groups.keys()].some(id => this.#turns.has(id))) this.#forget()
		if (!this.#knows) this.#noteFirst(page)
		let previous = null
		const newest = [...groups.keys()].at(-1)
		for (const [id, messages] of groups) {
			const turn = this.#turns.get(id) ?? this.#append(id, previous)
			previous = turn
			if (turn.hasEnded && !turn.isDirty) continue
			turn.messages = messages
			if (id === running) {
				if (!turn.attempt) turn.restart()
				turn.setUser(messages.find(message => message.role === "user")?.content)
			} else turn.fill(messages, running !== undefined || id !== newest)
		}
	}

	#append(id, previous = undefined) {
		const turn = new Turn(id, this.#on)
		turn.wait("thinking")
		this.#turns.set(id, turn)
		const echo = [...this.#echoes.values()].find(waiting => !waiting.hasEnded)
		if (previous) previous.element.after(turn.element)
		else if (previous === null) this.#list.prepend(turn.element)
		else if (echo) echo.element.before(turn.element)
		else this.#list.append(turn.element)
		return turn
	}

	async #loadOlder() {
		if (this.#older.disabled) return
		this.#older.disabled = true
		try {
			const page = await getMessages(this.session, this.#first)
			const anchor = this.#list.firstElementChild
			this.#setBusy(true)
			this.tools.scroll.holding(anchor, () => this.#prepend(page))
		} catch (error) {
			this.#fail(error)
		}
		this.#setBusy(false)
		this.#older.disabled = false
	}

	#prepend(page) {
		const groups = [...byTurn(page.messages)].reverse()
		for (const [id, messages] of groups) {
			const cut = this.#turns.get(id)
			const turn = cut ?? this.#append(id, null)
			turn.messages = [...messages, ...(cut?.messages ?? [])]
			if (!cut || cut.hasEnded) turn.fill(turn.messages, true)
			else turn.setUser(messages.find(message => message.role === "user")?.content)
		}
		this.#noteFirst(page)
	}

	#noteFirst(page) {
		this.#first = page.messages[0]?.position
		this.#older.hidden = !page.more
	}

	#forget() {
		for (const turn of this.#turns.values()) turn.element.remove()
		this.#turns.clear()
		this.#knows = false
	}

	/** What comes from the log is not read out as if it were said now. */
	#setBusy(isBusy) {
		this.element.setAttribute("aria-busy", isBusy)
	}

	#fail(error) {
		this.#problem.replaceChildren()
		if (!error) return
		this.#loading.hidden = true
		const isMissing = error.status === 404 || error.code === "session_not_found"
		const text = isMissing
			? [h("strong", {t: "chatMissing"}), h("span", {t: "chatMissingMore"})]
			: [h("span", {t: ["loadFailed", {reason: error.message || error.code}]}), h("button", {type: "button", t: "retryNow", onclick: () => this.sync()})]
		this.#problem.append(icon("warn"), h("div", ...text))
	}

	#on = {
		decide: (approvalId, decision) =>
			decision === "deny"
				? this.tools.wire.command("deny", {approval_id: approvalId})
				: this.tools.wire.command("approve", {approval_id: approvalId, scope: decision}),
		quote: text => this.tools.quote(text),
		branch: (turn, text) => this.tools.branch(this, turn, text).catch(failed)
	}
}

function byTurn(messages) {
	const groups = new Map()
	for (const message of messages) {
		const id = message.turn_id ?? `log_${message.position}`
		groups.set(id, [...(groups.get(id) ?? []), message])
	}
	return groups
}
