/* Messages not yet confirmed; each keeps its id and so is taken once. */

import {newId, sound, tab} from "./dom.js"
import {why} from "./i18n.js"

const TRIES = 3

export class Outbox {
	#entries = []
	#isHeld = true
	#running = false

	/** Nothing leaves before `open`. */
	constructor(wire, on) {
		this.wire = wire
		this.on = on
		addEventListener("beforeunload", event => this.#entries.length && event.preventDefault())
	}

	/** The user is known (again): what this tab keeps of theirs is sent. */
	open(isFirst) {
		if (isFirst) {
			const kept = tab.all("out.").filter(({id}) => !this.#entries.some(entry => entry.id === id))
			this.#entries.unshift(...kept.sort((a, b) => a.at - b.at))
		}
		this.#isHeld = false
		this.flush()
	}

	/** Another user may come back with the connection. */
	hold() {
		this.#isHeld = true
	}

	/** What waits stays in its user's storage. */
	leave() {
		this.#entries = []
		location.reload()
	}

	add(text, {session, draft}, attachments = []) {
		const entry = {id: newId("msg"), at: Date.now(), text: sound(text), session, draft, attachments}
		this.#entries.push(entry)
		this.#save(entry)
		this.flush()
		return entry
	}

	again(entry) {
		Object.assign(entry, {problem: undefined, tries: 0})
		this.#save(entry)
		this.flush()
	}

	remove(entry) {
		this.#entries = this.#entries.filter(other => other.id !== entry.id)
		tab.set(`out.${entry.id}`, null)
	}

	of({session, draft}) {
		return this.#entries.filter(entry => (session ? entry.session === session : entry.draft === draft))
	}

	/** What a page without a chat's address shows. */
	get place() {
		const entry = this.#entries.find(({session, draft, problem}) => !session || (draft && !problem))
		return entry && (entry.session ?? entry.draft)
	}

	async flush() {
		if (this.#running) return
		this.#running = true
		try {
			let entry
			while (!this.#isHeld && this.wire.isOpen && (entry = this.#entries.find(({problem}) => !problem))) {
				try {
					await this.#send(entry)
				} catch (error) {
					entry.tries = (entry.tries ?? 0) + (error.code === "timeout")
					if (error.code === "timeout" && entry.tries < TRIES) continue
					if (error.code === "offline") break
					entry.problem = why(error)
					this.#save(entry)
					this.on.refused(entry)
				}
			}
		} finally {
			this.#running = false
		}
	}

	async #send(entry) {
		if (!entry.session) {
			const {session_id: id} = await this.wire.command("new", {}, {id: `new_${entry.draft}`})
			for (const other of this.of({draft: entry.draft})) {
				other.session = id
				this.#save(other)
			}
			this.on.session(entry.draft, id)
		}
		const attachments = entry.attachments.map(({id}) => ({id}))
		const receipt = await this.wire.sendText(entry.id, {text: entry.text, session_id: entry.session, ...(attachments.length && {attachments})})
		this.remove(entry)
		this.on.accepted(entry, receipt)
	}

	/** Where there is no room, only the open page has it. */
	#save(entry) {
		entry.isLoose = !tab.set(`out.${entry.id}`, entry)
	}
}
