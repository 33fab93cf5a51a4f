/* What opens over the page: menus, forms, and short lines that go away. */

import {$, announce, h, icon} from "./dom.js"
import {name, say, t} from "./i18n.js"

const TOAST_MS = 6_000

/** A menu below a button; items are `[shape, key, run, style]`. */
export function menu(anchor, label, items) {
	const box = h("div.menu", {role: "menu", popover: "auto", label})
	for (const [shape, key, run, style] of items) {
		const chosen = () => {
			box.hidePopover()
			run()
		}
		box.append(h("button", {type: "button", role: "menuitem", class: style, onclick: chosen}, icon(shape), h("span", {t: key})))
	}
	box.addEventListener("toggle", ({newState}) => {
		if (newState === "open") return
		if (box.contains(document.activeElement) || document.activeElement === document.body) anchor.focus()
		box.remove()
	})
	box.addEventListener("keydown", event => {
		const step = {ArrowDown: 1, ArrowUp: -1}[event.key]
		if (event.key === "Tab") box.hidePopover()
		if (!step) return
		event.preventDefault()
		const all = [...box.children]
		all.at((all.indexOf(document.activeElement) + step) % all.length).focus()
	})
	document.body.append(box)
	box.showPopover()
	const at = anchor.getBoundingClientRect()
	box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8))}px`
	box.style.top = `${at.bottom + box.offsetHeight > innerHeight - 8 ? Math.max(8, at.top - box.offsetHeight) : at.bottom + 4}px`
	box.firstChild.focus()
}

/** A short line that goes away; with `undo` it can be taken back until `done` is called. */
export function toast(text, undo = null, done = () => {}) {
	$("toasts").replaceChildren()
	const line = h("div.toast", h("span", text))
	const end = how => {
		clearTimeout(timer)
		removeEventListener("pagehide", last)
		observer.disconnect()
		line.remove()
		how()
	}
	const last = () => end(done)
	if (undo) line.append(h("button", {type: "button", t: "undo", onclick: () => end(undo)}))
	const observer = new MutationObserver(() => line.isConnected || last())
	addEventListener("pagehide", last)
	const timer = setTimeout(last, TOAST_MS)
	$("toasts").append(line)
	observer.observe($("toasts"), {childList: true})
	announce(text)
}

export const failed = error => toast(error.message || t("unreachable"))

export function signButton(shape, label, onclick) {
	return h("button.quiet", {type: "button", label, onclick}, icon(shape))
}

export function flash(button, shape, key) {
	const before = button.dataset.tName
	const sign = button.querySelector(".icon")
	const text = button.querySelector("[data-t]")
	const fresh = icon(shape)
	sign.replaceWith(fresh)
	if (text) say(text, key)
	else name(button, key)
	announce(t(key))
	setTimeout(() => {
		fresh.replaceWith(sign)
		if (text) say(text, "copy")
		else name(button, before)
	}, 1_600)
}

/** Open a form of `forms.js`, which comes with the first one. */
export const form = (...given) => import("./forms.js").then(({form: open}) => open(...given), () => failed({}))
