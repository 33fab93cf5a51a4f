/* What opens over the page; forms and menus come when needed. */

import {$, announce, h, icon} from "./dom.js"
import {later, name, say, t, why} from "./i18n.js"

const TOAST_MS = 6_000

/** With `undo` it stays until `done`; its button and what is returned take it back. */
export function toast(text, undo = null, done = () => {}) {
	if (!undo) $("toasts").querySelector(".plain")?.remove()
	const line = h(undo ? "div.toast" : "div.toast.plain", h("span", text))
	const end = how => {
		clearTimeout(timer)
		removeEventListener("pagehide", last)
		line.remove()
		how()
	}
	const last = () => end(done)
	if (undo) line.append(h("button", {t: "undo", onclick: () => end(undo)}))
	addEventListener("pagehide", last)
	const timer = setTimeout(last, TOAST_MS)
	$("toasts").append(line)
	announce(text)
	return () => end(undo)
}

export const failed = error => void toast(why(error))

export function signButton(shape, label, onclick) {
	return h("button.quiet", {label, onclick}, icon(shape))
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

export function style(name) {
	const link = h("link", {rel: "stylesheet", href: `./static/${name}.css`})
	document.head.append(link)
	return new Promise((resolve, reject) => Object.assign(link, {onload: resolve, onerror: () => reject(new TypeError())}))
}

const forms = name => (...given) => later(import("./forms.js")).then(all => all[name](...given), () => failed({code: "unreachable"}))

export const [chatMenu, editor, form, menu, showShortcuts] = ["chatMenu", "editor", "form", "menu", "showShortcuts"].map(forms)
