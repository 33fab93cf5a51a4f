/* Texts; elements remember their keys. */

const LANGUAGES = ["zh-CN", "en"]
const said = new WeakMap()
const named = new WeakMap()
let current = pick()
const parts = []
let texts = new Map()
await loadTexts("texts")

async function loadTexts(part) {
	if (parts.includes(part)) return
	texts = await load(current, [...parts, part])
	parts.push(part)
}

export const later = async module => (await Promise.all([module, loadTexts("panel-texts")]))[0]

async function load(language, names) {
	const files = await Promise.all(names.map(part => import(`./${part}.${language}.js`)))
	const lines = files.flatMap(file => file.default.trim().split("\n"))
	return new Map(lines.map(line => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]))
}

export function attempt(run, otherwise) {
	try {
		return run()
	} catch {
		return otherwise
	}
}

function pick() {
	const stored = attempt(() => localStorage.getItem("miniclaw.language"))
	return LANGUAGES.includes(stored) ? stored : navigator.language?.toLowerCase().startsWith("zh") ? "zh-CN" : "en"
}

export const language = () => current

export const known = key => texts.get(key)

export function t(key, fill = {}) {
	return (texts.get(key) ?? key).replace(/\{(\w+)\}/g, (whole, field) => fill[field] ?? whole)
}

/** What a refusal means, and the server's own words. */
export function why({code, isLost, message}) {
	const known = texts.get(`why_${isLost ? "unreachable" : code}`)
	return known && message ? `${known} (${message})` : known || message || code
}

export function say(element, key, fill) {
	element.dataset.t = key
	said.set(element, fill)
	element.textContent = t(key, fill)
}

export function name(element, key, fill) {
	element.dataset.tName = key
	named.set(element, fill)
	element.setAttribute("aria-label", t(key, fill))
	if (element.matches("button, a, [role=img]")) element.title = t(key, fill)
}

export function translate(root) {
	document.documentElement.lang = current
	for (const element of root.querySelectorAll("[data-t]")) say(element, element.dataset.t, said.get(element))
	for (const element of root.querySelectorAll("[data-t-name]")) name(element, element.dataset.tName, named.get(element))
	for (const element of root.querySelectorAll("[data-t-placeholder]")) element.placeholder = t(element.dataset.tPlaceholder)
}

export async function toggleLanguage() {
	const other = LANGUAGES[1 - LANGUAGES.indexOf(current)]
	const fresh = await load(other, parts).catch(() => null)
	if (!fresh) return // the server is away
	texts = fresh
	current = other
	attempt(() => localStorage.setItem("miniclaw.language", current))
	translate(document)
	document.dispatchEvent(new CustomEvent("miniclaw:language"))
}

export const number = value => new Intl.NumberFormat(current).format(value)
export const dates = () => new Intl.DateTimeFormat(current, {dateStyle: "medium", timeStyle: "short"})
export const date = text => dates().format(new Date(text))
export const clock = date => new Intl.DateTimeFormat(current, {hour: "2-digit", minute: "2-digit"}).format(date)
