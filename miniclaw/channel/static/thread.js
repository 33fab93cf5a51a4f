/* One chat: turns of the log, live events, messages on their way. */

import {failed} from "./dialogs.js"
import {h} from "./dom.js"
import {byTurn, getMessages, lastPage, problem, said} from "./log.js"
import {Turn, isTerminal} from "./turn.js"

const CATCH_UP_PAUSE_MS = 400

export class Thread {
	#turns = new Map()
	#echoes = new Map()
	#list = h("div.turns")
	#older = h("button", {class: "older quiet", t: "older", hidden: true})
	#loading = h("p.loading.muted", {t: "loading"})
	#problem = h("div.thread-problem", {role: "alert"})
	#look
	#first
	#end = -1
	#waiting = []
	#buffer = null
	#again = false
	#sought = null
	#page = null
	#knows = false
	#seen = null

	constructor({session = null, draft = null}, tools) {
		Object.assign(this, {session, draft, tools, title: "", isStale: true, scrollPlace: null})
		this.#older.addEventListener("click", () => this.#loadOlder())
		this.#look = tools.scroll.whenNear(this.#older, () => this.#knows && this.#loadOlder())
		this.element = h("section.thread", {role: "log", label: "conversation"}, this.#older, this.#list, this.#loading, this.#problem)
		this.#loading.hidden = !session
		this.echoAll()
	}

	get isEmpty() {
		return !this.#list.childElementCount && (this.#knows || !this.session)
	}

	get active() {
		return this.#find(turn => !turn.hasEnded && turn.attempt > 0) ?? this.#find(turn => !turn.hasEnded)
	}

	echoAll = () => this.tools.outbox.of(this).forEach(entry => this.echo(entry))

	echo(entry) {
		if (this.#echoes.has(entry.id)) return
		const turn = new Turn(null, this.#on)
		turn.setUser(entry.text, entry.attachments)
		turn.isLoose = entry.isLoose
		this.#echoes.set(entry.id, turn)
		this.connectionChanged(this.tools.wire.isOpen)
		this.#list.append(turn.element)
		if (entry.problem) this.refused(entry)
		else this.#changed()
	}

	connectionChanged(isOpen) {
		if (!isOpen && this.session) this.#seen ??= new Set(this.#turns.keys())
		for (const turn of this.#echoes.values()) turn.hasEnded || turn.wait(isOpen ? "sending" : turn.isLoose ? "keptHere" : "keptForLater")
	}

	accepted(entry, {turn_id: id, ...told}) {
		const turn = this.#echoes.get(entry.id)
		this.#echoes.delete(entry.id)
		if (!id) turn?.showResult(told)
		else if (this.#turns.has(id)) {
			this.#turns.get(id).setUser(entry.text)
			turn?.element.remove()
		} else if (turn) {
			Object.assign(turn, {id, sentAs: entry.id})
			turn.wait("thinking")
			this.#turns.set(id, turn)
		}
		this.#changed()
	}

	refused(entry) {
		const turn = this.#echoes.get(entry.id)
		const leave = act => () => {
			this.#echoes.delete(entry.id)
			turn.element.remove()
			this.tools.outbox[act](entry)
			if (act === "again") this.echo(entry)
			this.#changed()
		}
		turn.refuse(entry.problem, leave("again"), leave("remove"))
		this.#changed()
	}

	take(payload) {
		if (this.#buffer) return void this.#buffer.push(payload)
		const turn = this.#turn(payload.turn_id)
		const missing = turn.take(payload)
		if (missing) this.#catchUp(turn, missing)
		if (isTerminal(payload.name)) this.#leave(turn)
		if (isTerminal(payload.name) && turn.isDirty) this.sync()
		if (!/^text\.|\.delta$/.test(payload.name)) this.#changed()
	}

	get last() {
		return this.#find(turn => turn.element === this.#list.lastElementChild)
	}

	#find = fits => [...this.#turns.values()].find(fits)
	#turn = id => this.#turns.get(id) ?? this.#append(id)
	#leave = turn => this.#turns.forEach(other => other.moveUp(turn))
	#follow = (before, {element}) => (before?.compareDocumentPosition(element) === Node.DOCUMENT_POSITION_PRECEDING && before.after(element), element)

	/** What waits stands in its order. */
	#changed() {
		[...this.#turns.values()].filter(({hasEnded, place}) => !hasEnded && place >= 0).sort((a, b) => a.place - b.place).reduce(this.#follow, null)
		this.tools.onChange(this)
	}

	failed(error) {
		const turn = this.#turns.get(error.turn_id) ?? this.#find(({sentAs}) => sentAs && sentAs === error.reply_to)
		if (!turn) return
		turn.fail(error)
		this.#leave(turn)
		this.#changed()
	}

	cancel = async () => this.active && this.tools.wire.command("cancel", {turn_id: this.active.id})

	/** Ask for the running turn, read the log, go on live. */
	async sync() {
		if (!this.session || (this.#again = Boolean(this.#buffer))) return
		this.#buffer = []
		this.#setBusy(true)
		try {
			const running = this.tools.wire.isOpen ? await this.#resume(this.active) : undefined
			const page = await lastPage(this.session, message => this.#isCut(message, running))
			const open = [running, ...this.#waiting.map(({turn_id: id}) => id)]
			this.#merge(page, running, open)
			if (running) this.#turn(running).place = 0
			for (const turn of this.#turns.values()) open.includes(turn.id) || (turn.place = NaN) // not in front of any
			for (const {turn_id: id, ...data} of this.#waiting) this.#turn(id).take({name: "turn.queued", attempt: 0, seq: 0, data})
			this.#knows = true
			this.isStale = running === undefined
			this.#fail(null)
			this.#seen = running === undefined || !this.tools.wire.isOpen ? new Set(this.#turns.keys()) : null
			const loose = [...this.#turns.values()].filter(turn => turn.isGuess || (!turn.hasEnded && !open.includes(turn.id)))
			if (running !== undefined) for (const turn of loose.slice(-3)) this.#ask(turn).catch(() => (this.isStale = true))
		} catch (error) {
			this.isStale = true
			if (!error.isLost) this.#fail(error)
		} finally {
			const buffered = this.#buffer
			this.#buffer = null
			for (const payload of buffered) this.take(payload)
			this.#setBusy(false)
		}
		this.#changed()
		this.#seek(true)
		if (this.#again) this.sync()
	}

	find(position) {
		this.#sought = position
		this.#seek()
	}

	async #seek(isRead = false) {
		const position = this.#sought
		if (position === null || this.#buffer) return
		if (!this.#knows || position > this.#end) return void (isRead || this.sync())
		while (position < this.#first && !this.#problem.hasChildNodes() && !this.element.hidden) await this.#loadOlder()
		if (this.element.hidden || this.#sought !== position) return
		this.#sought = null
		const starts = turn => turn.messages?.[0]?.position ?? Infinity
		const turn = [...this.#turns.values()].filter(turn => starts(turn) <= position).sort((a, b) => starts(b) - starts(a))[0]
		if (!turn) return
		this.#list.querySelector(".found")?.classList.remove("found")
		turn.element.classList.add("found")
		this.tools.scroll.show(turn.element)
	}

	async #resume(turn) {
		const running = await this.#ask(turn).catch(error => {
			if (error.code !== "turn_not_found") throw error
			return this.#ask()
		})
		return turn && running && running !== turn.id ? this.#ask(this.#turns.get(running) ?? {id: running}) : running
	}

	async #ask(turn) {
		const known = turn?.attempt ? {attempt: turn.attempt, after_seq: turn.seq} : {}
		const result = await this.tools.wire.command("resume", {session_id: this.session, ...(turn && {turn_id: turn.id}), ...known})
		if (result.title) this.title = result.title
		this.#waiting = result.waiting ?? []
		return result.turn_id ?? null
	}

	async #catchUp(turn, missing) {
		if (turn.isCatchingUp) return
		turn.isCatchingUp = true
		if (missing === "lost") turn.restart()
		await this.#ask(turn).catch(() => (this.isStale = true))
		setTimeout(() => (turn.isCatchingUp = false), CATCH_UP_PAUSE_MS)
	}

	#isCut({role, turn_id: id, position}, running) {
		const turn = this.#turns.get(id)
		return this.#knows && role !== "user" && position > this.#first && turn && id !== running && (turn.isDirty || !turn.hasEnded)
	}

	#merge(page, running, open) {
		const before = this.#seen ?? this.#turns
		if (page.more && !page.messages.some(({turn_id: id}) => before.has(id))) this.#beginAnew(open)
		if (!this.#knows) this.#noteFirst(page)
		this.#end = page.messages.at(-1)?.position ?? -1
		// What is further up comes when one goes there.
		const groups = byTurn(page.messages.filter(({position}) => position >= this.#first))
		let previous = null
		for (const [id, messages] of groups) {
			const turn = this.#turns.get(id) ?? this.#append(id, previous)
			previous = this.#follow(previous, turn)
			turn.messages ??= messages
			if (turn.hasEnded && !turn.isDirty) continue
			turn.messages = messages
			if (id === running) {
				if (!turn.attempt) turn.restart()
				turn.setUser(...said(messages))
			} else turn.fill(messages, running !== undefined || id !== [...groups.keys()].at(-1))
		}
	}

	#beginAnew(open) {
		for (const [id, turn] of this.#turns) {
			if (!turn.hasEnded && (open.includes(id) || !this.#seen?.has(id))) continue
			this.#turns.delete(id)
			turn.element.remove()
		}
		this.#knows = false
	}

	#append(id, previous) {
		const turn = new Turn(id, this.#on)
		turn.wait("thinking")
		this.#turns.set(id, turn)
		const echo = [...this.#echoes.values()].find(waiting => !waiting.hasEnded)
		if (previous) previous.after(turn.element)
		else if (previous === null) this.#list.prepend(turn.element)
		else this.#list.insertBefore(turn.element, echo?.element ?? null)
		return turn
	}

	#loadOlder = () => (this.#page ??= this.#readOlder().finally(() => (this.#page = null)))

	async #readOlder() {
		const first = this.#first
		try {
			const page = await getMessages(this.session, first, this.#sought === null ? 50 : 200)
			this.#fail(null)
			this.#setBusy(true)
			// Else the chat was begun anew meanwhile.
			const top = this.#list.firstElementChild
			if (first === this.#first) this.tools.scroll.holding(() => top.getBoundingClientRect().bottom, () => this.#prepend(page))
			this.#look() // it may still be in sight
		} catch (error) {
			this.#fail(error)
		}
		this.#setBusy(false)
	}

	#prepend(page) {
		for (const [id, messages] of [...byTurn(page.messages)].reverse()) {
			const cut = this.#turns.get(id)
			const turn = cut ?? this.#append(id, null)
			turn.messages = [...messages, ...(cut?.messages ?? [])]
			if (!cut || (cut.hasEnded && (cut.isCut || cut.isDirty))) turn.fill(turn.messages, true)
			else turn.setUser(...said(messages))
		}
		this.#noteFirst(page)
	}

	#noteFirst(page) {
		this.#first = page.messages[0]?.position ?? 0
		this.#older.hidden = !page.more
	}

	#setBusy = isBusy => this.element.setAttribute("aria-busy", isBusy)

	#fail(error) {
		this.#problem.replaceChildren(...(error ? problem(error, () => this.sync()) : []))
		this.#loading.hidden = true
	}

	#on = {
		decide: (id, scope) => this.tools.wire.command(...(scope === "deny" ? ["deny", {approval_id: id}] : ["approve", {approval_id: id, scope}])),
		quote: text => this.tools.quote(text),
		branch: (turn, text) => this.tools.branch(this, turn, text).catch(failed)
	}
}
