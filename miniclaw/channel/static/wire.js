/* The one WebSocket, coming back after every break. */

import {Refusal} from "./api.js"
import {newId, owner} from "./dom.js"

const ANSWER_MS = 30_000
const SILENCE_MS = 25_000
const PING_MS = 8_000
const OPEN_MS = 15_000
const ANSWERS = new Set(["command.result", "message.accepted"])
const BACKOFF_MS = [400, 1_000, 2_000, 4_000, 8_000, 15_000]

export class Wire {
	#socket = null
	#pending = new Map()
	#failures = 0
	#timer = 0
	#lastFrame = 0

	/** `on` has `onEvent(payload)`, `onFailed(error)` of a queued command, `onState({name, retryAt?})`, `isRefused()`. */
	constructor(on) {
		Object.assign(this, on)
		this.state = {name: "connecting"}
		setInterval(() => this.#watch(), 5_000)
		addEventListener("online", () => this.retry())
		addEventListener("offline", () => this.#drop())
		document.addEventListener("visibilitychange", () => {
			if (document.hidden) return
			this.retry()
			this.#watch()
		})
	}

	get isOpen() {
		return this.state.name === "open"
	}

	retry() {
		if (this.#socket) return
		clearTimeout(this.#timer)
		this.isNameless = !owner
		const address = new URL(`./ws?html=1${owner && `&user=${owner}`}`, location.href)
		address.protocol = address.protocol.replace("http", "ws")
		const socket = new WebSocket(address)
		this.#socket = socket
		this.#set({name: "connecting"})
		this.#timer = setTimeout(() => this.#drop(), OPEN_MS)
		let opened = false
		socket.onopen = () => {
			opened = true
			clearTimeout(this.#timer)
			this.#lastFrame = Date.now()
			this.#set({name: "open"})
		}
		socket.onmessage = ({data}) => this.#receive(data)
		socket.onclose = ({code}) => this.#closed(!opened || code === 1008 || code === 4401, code === 1009 ? "too_large" : "offline")
	}

	renew() {
		this.#drop()
		this.retry()
	}

	async sendText(id, payload) {
		return (await this.#request(id, "text", payload, ANSWER_MS)).data
	}

	async command(commandName, args = {}, {id = newId("cmd"), timeout = ANSWER_MS} = {}) {
		return (await this.#request(id, "command", {name: commandName, args}, timeout)).data.result ?? {}
	}

	#request(id, type, payload, timeout) {
		if (!this.isOpen) return Promise.reject(new Refusal("offline"))
		return new Promise((resolve, reject) => {
			const timer = setTimeout(() => this.#settle(id, null, new Refusal("timeout")), timeout)
			this.#pending.set(id, {resolve, reject, timer})
			const frame = {msg_id: id, msg_type: type, source: "", target: "agent", payload, timestamp: new Date().toISOString()}
			this.#socket.send(JSON.stringify(frame))
		})
	}

	#receive(data) {
		this.#lastFrame = Date.now()
		this.#failures = 0
		const {msg_type: type, payload} = JSON.parse(data)
		if (type === "error") {
			// What the server could not read has no id there.
			const id = payload.reply_to ?? (this.#pending.size === 1 ? this.#pending.keys().next().value : null)
			const isAnswer = this.#settle(id, null, new Refusal(payload.code, payload.message))
			if (!isAnswer) this.onFailed(payload)
		} else if (!ANSWERS.has(payload.name) || (!this.#settle(payload.data.reply_to, payload, null) && payload.turn_id)) {
			// The result of a queued command ends a turn.
			this.onEvent(payload)
		}
	}

	#settle(id, payload, error) {
		const waiting = this.#pending.get(id)
		if (!waiting) return false
		this.#pending.delete(id)
		clearTimeout(waiting.timer)
		if (error) waiting.reject(error)
		else waiting.resolve(payload)
		return true
	}

	#watch() {
		if (!this.isOpen || Date.now() - this.#lastFrame < SILENCE_MS) return
		const socket = this.#socket
		this.command("ping", {}, {timeout: PING_MS}).catch(error => {
			if (error.code === "timeout" && this.#socket === socket) this.#drop()
		})
	}

	#drop() {
		const socket = this.#socket
		if (!socket) return
		socket.onopen = socket.onmessage = socket.onclose = null
		socket.close()
		this.#closed(false)
	}

	async #closed(mayBeRefused, reason = "offline") {
		clearTimeout(this.#timer)
		this.#socket = null
		const delay = BACKOFF_MS[Math.min(this.#failures, BACKOFF_MS.length - 1)] * (0.8 + 0.4 * Math.random())
		this.#failures += 1
		this.#set({name: "waiting", retryAt: Date.now() + delay})
		for (const id of [...this.#pending.keys()]) this.#settle(id, null, new Refusal(reason))
		this.#timer = setTimeout(() => this.retry(), delay)
		if (mayBeRefused && (await this.isRefused()) && !this.isOpen) {
			clearTimeout(this.#timer)
			this.#set({name: "refused"})
		}
	}

	#set(state) {
		this.state = state
		this.onState(state)
	}
}
