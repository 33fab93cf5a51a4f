/* Keyboard shortcuts. */

import {showShortcuts} from "./dialogs.js"
import {$, isCovered} from "./dom.js"

export const MAC = /Mac|iPhone|iPad/.test(navigator.platform)
/** `on` has `newChat()`, `search()`, `copyLast()`, `escape()`. */
export function listenForKeys(on) {
	addEventListener("keydown", event => {
		const isMain = (MAC ? event.metaKey : event.ctrlKey) && !event.altKey
		const key = event.key.toLowerCase()
		if (isCovered() || $("page").inert || event.isComposing) return
		if (event.key === "Escape") return void (event.defaultPrevented || (event.target.type === "search" && event.target.value) || on.escape())
		const run = isMain && (event.shiftKey ? {o: on.newChat, ";": on.copyLast, ":": on.copyLast} : {k: on.search, "/": showShortcuts})[key]
		if (!run) return
		event.preventDefault()
		run()
	})
}
