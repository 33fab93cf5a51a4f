/* Files for the next message: chosen, pasted or dropped; uploaded at once, given to the agent with the message. */

import {call} from "./api.js"
import {signButton} from "./dialogs.js"
import {$} from "./dom.js"
import {chip} from "./ending.js"
import {t} from "./i18n.js"

const MOST = 10

export class Files {
	#lists = new Map()
	#key

	constructor(key, onChange) {
		this.#key = key
		this.onChange = onChange
	}

	/** What the message is sent with, or nothing while a file is on its way. */
	get ready() {
		const list = this.#list.filter(file => !file.problem)
		return list.every(file => file.id) ? list.map(({id, name}) => ({id, name})) : null
	}

	get #list() {
		return this.#lists.get(this.#key) ?? []
	}

	open(key) {
		this.#key = key
		this.#draw()
	}

	rename(from, to) {
		this.#lists.set(to, this.#lists.get(from) ?? [])
		this.#lists.delete(from)
		this.#key = to
	}

	clear() {
		this.#lists.delete(this.#key)
		this.#draw()
	}

	add(files) {
		const list = [...this.#list]
		this.#lists.set(this.#key, list)
		for (const blob of files.slice(0, MOST - list.length)) {
			const file = {name: blob.name || "file", size: blob.size}
			list.push(file)
			this.#upload(file, blob)
		}
		this.#draw()
	}

	async #upload(file, blob) {
		const body = new FormData()
		body.append("file", blob, file.name)
		try {
			file.id = (await call("uploads", body)).id
		} catch (error) {
			file.problem = error.status === 404 || error.status === 405 ? t("noUploads") : error.message || t("unreachable")
		}
		this.#draw()
	}

	#remove(file) {
		this.#lists.set(this.#key, this.#list.filter(other => other !== file))
		this.#draw()
		$("message").focus()
	}

	#draw() {
		$("files").replaceChildren(...this.#list.map(file => chip(file, signButton("cross", ["removeFile", {name: file.name}], () => this.#remove(file)))))
		$("files").hidden = !this.#list.length
		this.onChange()
	}
}
