/* Where one writes; each chat has its draft and files. */

import {failed, toast} from "./dialogs.js"
import {$, listen, local, sound, tab} from "./dom.js"
import {later, t} from "./i18n.js"

const IDLE_MS = 3_000

export class Composer {
	#key = "new"
	#slash = null
	#files = null
	/** `[files, key]` that wait for `files.js`. */
	#held = []

	/** `on` has `send(text, attachments)`, true if taken, `stop()`, `editLast()`. */
	constructor(on) {
		Object.assign(this, {on, field: $("message"), send: $("send"), stop: $("stop")})
		for (const type of ["dragenter", "dragover", "dragleave", "drop"]) listen("main", type, event => this.#dragged(event))
		listen("attach", "click", () => $("file").click())
		listen("file", "change", () => this.#add($("file").files))
		this.field.addEventListener("paste", event => {
			const {files, types} = event.clipboardData
			// Cells of a spreadsheet come as text and as a picture.
			if (!files.length || (types.includes("text/html") && types.includes("text/plain"))) return
			event.preventDefault()
			this.#add(files)
		})
		listen("composer", "submit", event => {
			event.preventDefault()
			this.#submit()
		})
		this.stop.addEventListener("click", () => on.stop())
		this.field.addEventListener("input", () => this.#changed())
		this.field.addEventListener("keydown", event => this.#pressed(event))
		listen("composer", "click", event => {
			if (!event.target.closest("button")) this.field.focus()
		})
		new ResizeObserver(() => this.#fit()).observe($("composer"))
	}

	open(key) {
		this.#key = key ?? "new"
		this.field.value = ""
		this.#files?.open(this.#key)
		this.#slash?.close()
		this.load()
	}

	/** The chat got its session, or (no key) is gone. */
	rename(key = "new") {
		const from = this.#key
		const draft = this.#draft
		if (key === "new" && !draft.text && !draft.files.length) return
		this.#keep(from, {text: "", files: []})
		this.#key = key
		const there = this.#stored
		if (there?.text) this.field.value = [draft.text, there.text].filter(Boolean).join("\n\n")
		for (const held of this.#held) if (held[1] === from) held[1] = key
		this.#files?.rename(from, key)
		if (there?.files.length) this.#add(there.files)
		this.#changed()
	}

	get #draft() {
		return {text: this.field.value, files: this.#files?.kept() ?? tab.get(`draft.${this.#key}`)?.files ?? []}
	}

	/** The tab's own draft, or a copy of the last one of any tab. */
	get #stored() {
		const key = `draft.${this.#key}`
		if (!tab.get(key) && local.get(key)) tab.set(key, local.get(key))
		return tab.get(key)
	}

	/** Never in the place of what is being written. */
	load() {
		const draft = this.#stored
		if (!this.field.value) this.field.value = draft?.text ?? ""
		if (draft?.files.length) this.#add(draft.files)
		this.#fit()
		this.#enable()
	}

	/** What another tab wrote is not ours to clear. */
	#keep(name, draft) {
		const key = `draft.${name}`
		const before = JSON.stringify(tab.get(key))
		tab.set(key, draft)
		if (draft.text || draft.files.length) local.set(key, draft)
		else if (JSON.stringify(local.get(key)) === before) local.set(key, null)
	}

	set isRunning(isRunning) {
		const hadFocus = document.activeElement === this.stop
		this.stop.hidden = !isRunning
		if (hadFocus && !isRunning) this.field.focus()
	}

	focus() {
		this.field.focus({preventScroll: true})
	}

	write(text) {
		this.field.value = text
		this.#changed()
		this.focus()
		this.field.setSelectionRange(text.length, text.length)
	}

	quote(text) {
		const lines = text.trim().split("\n").map(line => `> ${line}`)
		this.write(`${lines.join("\n")}\n\n${this.field.value}`)
		this.field.scrollTop = this.field.scrollHeight
	}

	#pressed(event) {
		// 229: an input method at work, in Safari also behind its end.
		const isComposing = event.isComposing || event.keyCode === 229
		if (isComposing || this.#slash?.pressed(event)) return
		if (event.key === "ArrowUp" && !this.field.value) this.on.editLast()
		if (event.key !== "Enter" || event.shiftKey || event.altKey) return
		event.preventDefault()
		this.#submit()
	}

	#submit() {
		const files = this.#ready
		if (this.#files?.hasFailed) return toast(t("fileFailed"))
		const text = sound(this.field.value).trim() || (files?.length ? t("seeFiles") : "")
		if (!files) toast(t("uploading"))
		if (!text || !files || !this.on.send(text, files)) return
		this.field.value = ""
		this.#files?.clear()
		this.#changed()
	}

	#changed() {
		this.#keep(this.#key, this.#draft)
		this.#commands()
		this.#fit()
		this.#enable()
	}

	#filesChanged(key) {
		if (key === this.#key) this.#changed()
		else this.#keep(key, {text: tab.get(`draft.${key}`)?.text ?? "", files: this.#files.kept(key)})
	}

	get #ready() {
		return this.#held.some(held => held[1] === this.#key) ? null : this.#files ? this.#files.ready : []
	}

	async #commands() {
		if (!this.#slash && this.field.value.startsWith("/")) {
			const {SlashMenu} = await later(import("./slash.js")).catch(() => ({}))
			if (SlashMenu) this.#slash ??= new SlashMenu(this.field, $("slash"), text => this.write(text), () => this.#submit())
		}
		this.#slash?.update()
	}

	#add(list, key = this.#key) {
		this.#held.push([[...list], key])
		$("file").value = ""
		this.#take()
	}

	async #take() {
		const loaded = await later(import("./files.js")).catch(() => null)
		if (loaded) this.#files ??= new loaded.Files(this.#key, key => this.#filesChanged(key))
		else if (this.#held.length) failed({code: "unreachable"})
		if (this.#files) for (const held of this.#held.splice(0)) this.#files.add(...held)
		this.#enable()
	}

	/** What waited comes now, what may be needed a little later. */
	connected() {
		setTimeout(() => this.#take(), this.#held.length ? 0 : IDLE_MS)
		this.#files?.again()
	}

	#dragged(event) {
		if (!event.dataTransfer?.types.includes("Files")) return
		event.preventDefault()
		$("composer").classList.toggle("drop", event.type === "dragover" || event.type === "dragenter")
		if (event.type === "drop") this.#add(event.dataTransfer.files)
	}

	#enable() {
		const files = this.#ready
		this.send.disabled = !files || (!this.field.value.trim() && !files.length)
	}

	#fit() {
		this.field.style.height = "auto"
		this.field.style.height = `${this.field.scrollHeight}px`
	}
}
