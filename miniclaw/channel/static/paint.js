/* What streams is painted at most once a frame. */

const waiting = new Set()

export function soon(part) {
	if (!waiting.size) requestAnimationFrame(flush)
	waiting.add(part)
}

function flush() {
	const parts = [...waiting]
	waiting.clear()
	for (const part of parts) part.paint()
}
