/* Files for the next message, uploaded at once. */

import {call} from "./api.js"
import {signButton, toast} from "./dialogs.js"
import {$} from "./dom.js"
import {chip} from "./ending.js"
import {t, why} from "./i18n.js"

const MOST = 8
const AT_ONCE = 2
const BUSY_MS = [500, 1_000, 2_000, 4_000, 8_000]

export class Files {
	#lists = new Map()
	#queue = []
	#workers = 0
	#key

	constructor(key, onChange) {
		this.#key = key
		this.onChange = onChange
	}

	/** What is sent along; null while a file is on its way or failed. */
	get ready() {
		return this.#of().every(file => file.id) ? this.kept() : null
	}

	kept(key = this.#key) {
		return this.#of(key).filter(file => file.id).map(({id, name}) => ({id, name}))
	}

	get hasFailed() {
		return this.#of().some(file => file.problem)
	}

	#of = (key = this.#key) => this.#lists.get(key) ?? []

	open(key) {
		this.#key = key
		this.#draw()
	}

	rename(from, to) {
		this.#lists.set(to, [...this.#of(from), ...this.#of(to)])
		this.#lists.delete(from)
		this.open(to)
	}

	clear() {
		this.#set([])
	}

	add(files, key) {
		const list = [...this.#of(key)]
		const fresh = files.filter(({id}) => !id || !list.some(file => file.id === id))
		const left = fresh.splice(Math.max(0, MOST - list.length))
		for (const given of fresh) {
			const file = given.id ? given : {name: given.name || "file", blob: given}
			list.push(file)
			if (!file.id) this.#queue.push(file)
		}
		this.#set(list, key)
		while (this.#workers < Math.min(AT_ONCE, this.#queue.length)) this.#work()
		if (left.length) toast(t("tooManyFiles", {count: MOST, names: left.map(({name}) => name).join(", ")}))
	}

	again() {
		const lost = [...this.#lists.values()].flat().filter(file => file.isLost)
		for (const file of lost) Object.assign(file, {problem: null, isLost: false})
		this.#queue.push(...lost)
		if (lost.length) this.add([], this.#key)
	}

	async #work() {
		this.#workers += 1
		for (let file; (file = this.#queue.shift()); ) await this.#upload(file)
		this.#workers -= 1
	}

	async #upload(file) {
		const body = new FormData()
		body.append("file", file.blob, file.name)
		for (let tries = 0; !file.id && !file.problem && !file.isRemoved; tries += 1) {
			try {
				file.id = (await call("uploads", body)).id
			} catch (error) {
				if (error.status === 503 && tries < BUSY_MS.length) await new Promise(done => setTimeout(done, BUSY_MS[tries]))
				else Object.assign(file, {problem: why(error), isLost: error.code === "unreachable"})
			}
		}
		this.#draw()
		for (const [key, list] of this.#lists) if (list.includes(file)) this.onChange(key)
	}

	#remove(file) {
		file.isRemoved = true
		this.#set(this.#of().filter(other => other !== file))
		$("message").focus()
	}

	#set(list, key = this.#key) {
		this.#lists.set(key, list)
		this.#draw()
		this.onChange(key)
	}

	#draw() {
		$("files").replaceChildren(...this.#of().map(file => chip(file, signButton("cross", ["removeFile", {name: file.name}], () => this.#remove(file)))))
		$("files").hidden = !this.#of().length
	}
}
