/* The few things that are read over HTTP. */

const TIMEOUT_MS = 20_000;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function get(path) {
  let response;
  try {
    response = await fetch(`./api/${path}`, {
      headers: { Accept: "application/json" },
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    throw new ApiError(0, "unreachable", "");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new ApiError(response.status, body.error?.code ?? "internal", body.error?.message ?? `HTTP ${response.status}`);
  }
  return body;
}

export const getStatus = () => get("status");
export const getSessions = async () => (await get("sessions")).sessions;

/** Messages of a session, oldest first; `before` is the position of the first one that is shown. */
export function getMessages(sessionId, before) {
  const query = new URLSearchParams({ limit: 50, html: 1, ...(before === undefined ? {} : { before }) });
  return get(`sessions/${encodeURIComponent(sessionId)}/messages?${query}`);
}
