/* The panels of memory, skills and tools. */

import {call, link, query} from "./api.js"
import {failed, form, toast} from "./dialogs.js"
import {h} from "./dom.js"
import {date, number, t} from "./i18n.js"
import {heading, list} from "./list.js"

const CATEGORIES = ["fact", "preference", "task", "sensitive"].map(one => [one, `cat_${one}`])
const STATES = {ready: "good", starting: "", failed: "bad", off: ""}

const memoryPath = ({memory_id: id}, rest = "") => `memories/${encodeURIComponent(id)}${rest}`

function memoryFields(memory = {}) {
	return [
		{name: "content", label: "content", value: memory.content, long: true},
		{name: "context", label: "context", value: memory.context, optional: true},
		{name: "category", label: "category", value: memory.category ?? "fact", options: CATEGORIES}
	]
}

async function save(values, refresh, supersedes) {
	const {similar} = await call("memories", {...values, ...(supersedes && {supersedes: supersedes.memory_id})})
	const close = similar.filter(memory => memory.memory_id !== supersedes?.memory_id)
	if (close.length) toast(t("similar", {content: close[0].content}))
	refresh()
}

function memoryRow(memory, refresh) {
	const change = async values => {
		await call(memoryPath(memory), {...values, expected_updated_at: memory.updated_at}, "PATCH")
		refresh()
	}
	const remove = () => call(memoryPath(memory), undefined, "DELETE").then(refresh)
	const confirm = () => call(memoryPath(memory, "/confirm"), {}).then(refresh)
	const isProposed = memory.status === "proposed"
	return {
		text: memory.content,
		note: [memory.context, date(memory.updated_at), memory.expires_at && t("until", {time: date(memory.expires_at)})],
		tags: [[t(`cat_${memory.category}`)], [memory.source !== "user" && t(`by_${memory.source}`)], [isProposed && t("proposed"), "warn"]],
		buttons: isProposed ? [["confirm", confirm, "primary"]] : [],
		more: [
			["edit", "edit", () => form("edit", memoryFields(memory), change)],
			["fork", "supersede", () => form("supersede", memoryFields({...memory, content: ""}), values => save(values, refresh, memory))],
			["trash", "delete", () => form("deleteMemory", [], remove, "delete", true), "danger"]
		]
	}
}

async function loadMemories({refresh}, wanted) {
	const {memories} = await call(`memories${query({query: wanted})}`)
	const add = () => form("addMemory", memoryFields(), values => save(values, refresh))
	const sorted = wanted ? memories : [...memories].reverse()
	return [
		h("div.choices", h("button", {class: "primary", t: "addMemory", onclick: add}), h("a.button", {href: link("memories/export"), download: "memories.json", t: "exportAll"})),
		list(sorted.map(memory => memoryRow(memory, refresh)), wanted ? "noneFound" : "noMemories")
	]
}

async function loadSkills({wire, session, refresh}) {
	const id = session()
	const {skills} = await call(`skills${query({session_id: id})}`)
	const turn = skill => () => wire.command("skills", {session_id: id, [skill.active ? "deactivate" : "activate"]: skill.name}).then(refresh)
	const rows = skills
		.sort((a, b) => b.active - a.active || Boolean(b.match) - Boolean(a.match))
		.map(skill => ({
			title: skill.name,
			text: skill.description,
			note: skill.missing || (skill.match && t("matched", {reason: skill.match})),
			tags: [[skill.active && t("on"), "good"], [skill.missing && t("unusable"), "bad"]],
			buttons: id && !skill.missing ? [[skill.active ? "switchOff" : "switchOn", turn(skill)]] : []
		}))
	return [!id && h("p.muted", {t: "skillsNeedChat"}), list(rows)]
}

async function loadTools({wire, refresh}) {
	const [{tools, problems}, {servers}] = await Promise.all([call("tools"), call("mcp")])
	const act = (action, name) => () => wire.command("mcp", {action, name}).then(refresh, failed)
	const serverRow = server => ({
		title: server.name,
		text: server.error,
		note: [server.version, t("toolCount", {count: number(server.tools.length)}), server.restarts > 0 && t("restarts", {count: server.restarts})],
		tags: [[t(`mcp_${server.state}`), STATES[server.state] ?? "warn"]],
		buttons: [["off", "disabled"].includes(server.state) ? ["switchOn", act("enable", server.name)] : ["switchOff", act("disable", server.name)]]
	})
	const toolRow = ({name, description, risk}) => ({title: name, text: description, tags: [[t(`risk_${risk}`), risk === "read" ? "" : "warn"]]})
	return [
		servers.length > 0 && [heading("mcpServers"), list(servers.map(serverRow))],
		problems.length > 0 && [heading("toolProblems"), list(problems.map(problem => ({text: Object.values(problem).join(": "), tags: [[t("tool_failed"), "bad"]]})))],
		heading("allTools"),
		list(tools.map(toolRow))
	].flat()
}

export const PANELS = {memory: loadMemories, skills: loadSkills, tools: loadTools}
